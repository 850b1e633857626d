"""The site in a real browser: Chromium without a window, where there is one."""

import functools
import http.server
import json
import os
import re
import shutil
import threading
import time
from urllib.parse import urlencode, urlsplit

import pytest

from built_site import (
    ROOT,
    build_site,  # noqa: F401 — a fixture
)

webdriver = pytest.importorskip("selenium.webdriver", reason="no browser: selenium is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.docs,
    pytest.mark.xdist_group("site"),
    pytest.mark.skipif(
        BROWSER is None or DRIVER is None, reason="no browser: chromium or its driver is absent"
    ),
]
PHONE, DESK = 390, 1280
HEIGHT = 900  # of the screen
PATIENCE = 20  # seconds that a search may take on a busy machine
MAIN_PAGES = [  # one of each kind
    f"{name}.html"
    for name in (
        "index", "start/first-models", "howto/strength",
        "explanation/theory", "reference/methods", "results/README",
    )
]  # fmt: skip
FIRST_HITS = {
    "choose strength": "howto/strength.html",
    "resume": "howto/checkpoints.html",
    "own nn.Module": "howto/own-network.html",
}
PHRASINGS = {  # searches whose words are not a phrase of the list, for every page of the list
    "explanation/privacy": ["what can the server see", "is my data private"],
    "explanation/when-not": ["when should I not use it", "when does a graph help"],
    "howto/checkpoints": ["resume training", "continuing after a crash"],
    "howto/cite": ["citing fedlap", "citations of methods"],
    "howto/comparisons": ["comparing my method with others", "which baselines are there"],
    "howto/data": ["my own data files", "loading a csv file"],
    "howto/deploy": ["deploying to hospitals", "deployments over TLS"],
    "howto/extending": ["write my own method", "adding plugins"],
    "howto/flower": ["flower app", "run in a flower federation"],
    "howto/gpu": ["train on gpus", "running with cuda"],
    "howto/graphs": ["choosing the graph", "which graph should I choose"],
    "howto/own-network": ["own neural network", "custom nn modules"],
    "howto/peers": ["training without any server", "peers on four machines"],
    "howto/personal-models": ["predicting new rows", "a new client joins"],
    "howto/ray": ["scaling out", "ray clusters"],
    "howto/report": ["reading a report", "open the html report"],
    "howto/reproduce": ["reproducing the paper", "reproduce a table"],
    "howto/scikit-learn": ["sklearn pipelines", "estimators of scikit-learn"],
    "howto/strength": ["choosing a strength", "pick the regularization parameter"],
    "howto/tracking": ["log scores to tensorboard", "tracking with mlflow"],
    "howto/tuning": ["tuning many settings", "cross-validate the learning rates"],
    "start/install": ["installing fedlap", "install with conda"],
}

FIND_CUT = """
const scrolls = (e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
const isCut = (e) => {
  if (e.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (; e && e.tagName != "ARTICLE"; e = e.parentElement) if (scrolls(e)) return false;
  return true;
};
return [...document.querySelectorAll("article :is(table, pre, img, svg, .formula)")]
  .filter((e) => !e.closest(".katex") && isCut(e)).map((e) => e.outerHTML.slice(0, 80));
"""


FIND_SCROLLED = """
return [...document.querySelectorAll("article :is(pre, .formula-block, .cell_output)")]
  .filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent.slice(0, 80));
"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def address(site):
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


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


@pytest.fixture
def open_page(driver, address):
    """Open a page; in the end, the console is empty, and nothing but this site was asked for."""
    driver.get("about:blank")
    for kind in ("browser", "performance"):
        driver.get_log(kind)  # what was there before

    def at(page, width=DESK, scheme="light", base=address):
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        colours = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})
        driver.get(f"{base}/{page}")
        return driver

    yield at
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    outside = [url for url in asked if not url.startswith((address, "data:", "file:", "about:"))]
    assert outside == []
    assert [event["params"] for event in events if event["method"] == "Network.loadingFailed"] == []


def wait_for(find):
    """Return the first result of `find` that is not empty."""
    end = time.monotonic() + PATIENCE
    while not (found := find()):
        assert time.monotonic() < end, "nothing was found in time"
        time.sleep(0.1)
    return found


def list_names(site):
    names = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    return [name for name in names if not name.startswith("_static")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_pages_open_and_fit_the_screen(open_page, site, width, scheme):
    for name in list_names(site) if (width == DESK) == (scheme == "light") else MAIN_PAGES:
        driver = open_page(name, width, scheme)
        if width == DESK and name in MAIN_PAGES:
            assert driver.execute_script(FIND_SCROLLED) == [], name
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width, name
        assert driver.execute_script(FIND_CUT) == [], name
        broken = driver.execute_script(
            "return [...document.images].filter(e => e.complete && !e.naturalWidth).map(e => e.src)"
        )
        assert broken == [], name
        assert driver.find_elements("css selector", ".katex-error") == [], name
        raw = driver.execute_script(
            "return [...document.querySelectorAll('.formula')].filter(e => !e.querySelector('.katex')).length"
        )
        assert raw == 0, name


def test_the_landing_page_is_one_screen(open_page):
    """The map, who it is for, the lines of Python and the commands are seen without scrolling."""
    driver = open_page("index.html")
    bottoms = driver.execute_script(
        "return [...document.querySelectorAll('article :is(.landing, pre)')]"
        ".map(e => e.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) == 3
    assert max(bottoms) <= HEIGHT
    text = driver.find_element("css selector", ".landing").text
    assert all(word in text for word in ("For practitioners", "For researchers", "Simulated", "Deployed"))


@pytest.mark.parametrize("query", FIRST_HITS)
@pytest.mark.parametrize("from_disk", [False, True])
def test_the_search_finds_the_page_first(open_page, site, address, query, from_disk):
    driver = open_page(f"search.html?{urlencode({'q': query})}", base=site.as_uri() if from_disk else address)
    first = wait_for(lambda: driver.find_elements("css selector", "ul.search li a"))[0]
    assert urlsplit(first.get_attribute("href")).path.endswith(f"/{FIRST_HITS[query]}")
    wait_for(lambda: "found" in driver.find_element("css selector", "p.search-summary").text)


def test_a_search_in_other_words_finds_the_page_first(open_page):
    script = (ROOT / "docs" / "_static" / "search_scorer.js").read_text("utf-8")
    first_pages = json.loads(re.search(r"FIRST_PAGES = (\{.*?\n\});", script, re.S)[1])
    assert set(PHRASINGS) == set(first_pages)
    listed = [phrase for phrases in first_pages.values() for phrase in phrases]
    wrong = {}
    for page, queries in PHRASINGS.items():
        assert len(queries) == 2
        for query in queries:
            assert query not in listed
            driver = open_page(f"search.html?{urlencode({'q': query})}")
            links = wait_for(lambda: driver.find_elements("css selector", "ul.search li a"))  # noqa: B023
            first = urlsplit(links[0].get_attribute("href")).path
            wait_for(lambda: "found" in driver.find_element("css selector", "p.search-summary").text)  # noqa: B023
            if not first.endswith(f"/{page}.html"):
                wrong[query] = first
    assert wrong == {}


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_light_and_dark(open_page, scheme, is_dark):
    driver = open_page("index.html", DESK, scheme)
    colour = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) / 3
    assert (brightness < 80) is is_dark
