"""The page in a real browser: Chromium without a window, where there is one."""

import base64
import io
import os
import shutil

import pytest

from fedlap.report.page import write_page
from pages import NASTY, PAGE

webdriver = pytest.importorskip("selenium.webdriver", reason="no browser: selenium is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="no browser: chromium or its driver is absent"
)
PHONE, DESK = 360, 1280


@pytest.fixture(scope="module")
def driver():
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # which Chromium asks of root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return write_page(PAGE, tmp_path_factory.mktemp("page")).as_uri()


@pytest.fixture
def open_page(driver, address):
    def at(width=DESK, scheme="light"):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        colours = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})
        driver.get(address)
        return driver

    yield at
    assert driver.get_log("browser") == []  # no word of the console, whatever the test did


def all_(driver, what):
    return driver.find_elements("css selector", what)


def texts(driver, what):
    return [element.text for element in all_(driver, what)]


def hover(driver, element, across=0.5):
    """Move the pointer over an element, this far from its left."""
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    shift = int((across - 0.5) * element.rect["width"])
    webdriver.ActionChains(driver, duration=0).move_to_element_with_offset(element, shift, 0).perform()


def test_everything_is_shown_and_nothing_fetched(open_page, address):
    driver = open_page()
    assert driver.find_element("css selector", "h1").text == f"A page & {NASTY}"
    assert texts(driver, "#s-scores tbody td")[0] == "97.92 ± 1.06 ★\npaper 95.76 ± 0.46"
    assert len(all_(driver, "main section")) == len(PAGE.sections)
    assert all(element.is_displayed() for element in all_(driver, "main section, main h2"))
    asked = driver.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert asked == []
    failed = [entry for entry in driver.get_log("performance") if "Network.loadingFailed" in entry["message"]]
    assert failed == []


def test_methods_are_hidden_and_shown_in_all_panels(open_page):
    driver = open_page()
    button = next(b for b in all_(driver, ".curves .keys button") if b.text == "fedu_1")

    def list_visible():
        return [
            g.is_displayed() for g in all_(driver, "g.series") if g.get_attribute("data-name") == "fedu_1"
        ]

    assert list_visible() == [True, True]
    button.click()
    assert list_visible() == [False, False]
    assert button.get_attribute("aria-pressed") == "false"
    others = [g for g in all_(driver, "g.series") if g.get_attribute("data-name") != "fedu_1"]
    assert all(g.is_displayed() for g in others)
    button.click()
    assert list_visible() == [True, True]


def test_hovering_shows_all_values_there(open_page):
    driver = open_page()
    picture = all_(driver, ".curves .panel svg")[0]
    hover(driver, picture, 0.97)
    tip = driver.find_element("id", "tip")
    assert tip.text.splitlines() == [
        "round 30",
        "fedu_1: 97.34 (95.34 to 99.34)",
        f"{NASTY}: 89.394 (87.394 to 91.394)",
    ]
    all_(driver, ".curves .keys button")[0].click()
    hover(driver, picture, 0.96)
    assert tip.text.splitlines() == ["round 30", f"{NASTY}: 89.394 (87.394 to 91.394)"]
    hover(driver, driver.find_element("css selector", "h1"))
    assert not tip.is_displayed()


def test_arrow_keys_move_along_a_curve(open_page):
    driver = open_page()
    picture = all_(driver, ".curves .panel svg")[0]
    driver.execute_script("arguments[0].focus()", picture)
    keys = webdriver.Keys
    webdriver.ActionChains(driver).send_keys(keys.ARROW_RIGHT, keys.ARROW_RIGHT).perform()
    assert driver.find_element("id", "tip").text.splitlines()[0] == "round 2"


def test_bars_cells_and_nodes_say_what_they_are(open_page):
    driver = open_page()
    tip = driver.find_element("id", "tip")
    for what, wanted in (
        (".bars .one:not(.off) .bar", "north: 1.25 points"),
        ("rect.heat:nth-of-type(3)", "north, c: 12"),
        (".node", "n: 2 edges drawn"),
    ):
        hover(driver, all_(driver, what)[0])
        assert tip.text == wanted
    assert len(all_(driver, ".edge.lit")) == 2  # those of the node under the pointer


def test_bars_switch_between_methods(open_page):
    driver = open_page()
    buttons, charts = all_(driver, ".bars .keys button"), all_(driver, ".bars .one")
    assert [chart.is_displayed() for chart in charts] == [True, False]
    buttons[1].click()
    assert [chart.is_displayed() for chart in charts] == [False, True]
    assert [b.get_attribute("aria-pressed") for b in buttons] == ["false", "true"]


def test_columns_sort_and_go_back(open_page):
    driver = open_page()
    head = all_(driver, "#s-scores thead button")[2]

    def column():
        return [text.split()[0] for text in texts(driver, "#s-scores tbody td:nth-of-type(2)")]

    for wanted, order in (
        (["88.02", "85.40"], "descending"),
        (["85.40", "88.02"], "ascending"),
        (["88.02", "85.40"], None),
    ):
        head.click()
        assert column() == wanted
        assert head.find_element("xpath", "..").get_attribute("aria-sort") == order


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_is_never_wider_than_the_screen(open_page, width):
    driver = open_page(width)
    # Texts are in boxes of their own, which scroll.
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    wide = driver.execute_script(
        "return [...document.querySelectorAll('main *, header *, footer *')].filter(e => !e.closest('svg') &&"
        "!e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)"
    )
    assert wide == []


@pytest.mark.parametrize(("scheme", "wanted"), [("light", (255, 255, 255)), ("dark", (20, 23, 26))])
def test_light_and_dark(open_page, scheme, wanted):
    driver = open_page(PHONE, scheme)
    corner = picture(driver.get_screenshot_as_png()).getpixel((2, 2))
    assert corner[:3] == wanted


def picture(content):
    from PIL import Image

    return Image.open(io.BytesIO(content))


def test_it_prints_black_on_white_without_toggles(open_page):
    driver = open_page(DESK, "dark")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    assert not any(element.is_displayed() for element in all_(driver, "nav, .files, .bars .keys, details"))
    assert all(element.is_displayed() for element in all_(driver, ".bars .one"))  # nobody can switch on paper
    assert [b.text for b in all_(driver, ".curves .keys button")] == ["fedu_1", NASTY, "third"]  # the legend
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    printed = base64.b64decode(driver.print_page())
    assert printed[:5] == b"%PDF-"
    assert len(printed) > 10_000


def test_it_is_readable_without_its_script(open_page):
    driver = open_page()
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.refresh()
        assert [chart.is_displayed() for chart in all_(driver, ".bars .one")] == [True, True]
        assert texts(driver, "#s-scores thead th")[1] == "mean"
        assert all(g.is_displayed() for g in all_(driver, "g.series"))
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
