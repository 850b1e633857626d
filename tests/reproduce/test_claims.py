"""Tables of reproductions, what is marked, which claims hold, and what differs from the paper and why."""

import numpy as np
import pytest

from fedlap.report.page import TableCell
from fedlap.report.paired_tests import compare_paired
from fedlap.reproduce import claims, score_table
from fedlap.reproduce.cell_results import ResultFolder, RowResult
from fedlap.reproduce.recipe import Unit
from fedlap.reproduce.results_pages import build_results_pages, find_deviations, list_missing
from small_recipes import small


def results(recipes, findings):
    """Return the text of all pages."""
    return "".join(build_results_pages(recipes, findings).values())


def row(accuracy, seeds=None, **more):
    """A finding with these accuracies, in percent."""
    seeds = list(range(len(accuracy))) if seeds is None else seeds
    return {"seeds": seeds, "last": [{"accuracy": value / 100} for value in accuracy], "diverged": {}, **more}


def build_findings(tmp_path, small_recipe, **rows):
    """Return findings with these rows in the small recipe's only cell."""

    class FixedResults(ResultFolder):
        def read(self, recipe, cell, reading):
            signed = {
                name: {"signature": Unit(small_recipe, cell, reading, name).signature, "grid": {}, **values}
                for name, values in rows.items()
            }
            return {"rows": signed}

    return FixedResults(tmp_path)


def check_claim(tmp_path, fedu, local):
    recipe = small(tmp_path)
    (one,) = claims.check_claims(recipe, build_findings(tmp_path, recipe, fedu=row(fedu), local=row(local)))
    return one


def test_a_claim_holds_where_it_is_better(tmp_path):
    one = check_claim(tmp_path, [91.0, 92.1, 93.0], [90.0, 91.0, 92.0])
    assert one.verdict == "holds"
    (against,) = one.against
    assert against.verdict == "better"
    assert against.difference == pytest.approx(3.1 / 3)
    paired = compare_paired([91.0, 92.1, 93.0], [90.0, 91.0, 92.0])
    assert (against.error, against.p_value) == pytest.approx((paired.error, paired.p_value))


def test_a_claim_does_not_hold_where_it_is_worse(tmp_path):
    assert check_claim(tmp_path, [90.0, 91.0, 92.0], [91.0, 92.1, 93.0]).verdict == "DOES NOT HOLD"


def test_as_good_is_less_than_half_a_point_below(tmp_path):
    level, near = [90.0, 91.0, 92.0, 93.0], [90.1, 90.9, 92.1, 92.9]
    assert check_claim(tmp_path, near, level).against[0].verdict == "as good"
    assert check_claim(tmp_path, near, level).verdict == "holds"
    assert check_claim(tmp_path, level, level).verdict == "holds"


def test_what_was_not_run_is_not_said_to_hold(tmp_path):
    recipe = small(tmp_path, ('against = ["local"]', 'against = ["local", "other"]'), ("[[claims]]", OTHER))
    better = {"fedu": row([91.0, 92.1, 93.0]), "local": row([90.0, 91.0, 92.0])}
    (one,) = claims.check_claims(recipe, build_findings(tmp_path, recipe, **better))
    assert one.verdict == "holds so far"


OTHER = """[rows.other]
title = "other"
algorithm = { name = "fedavg" }

[[claims]]"""


def test_against_one_that_diverged_the_seeds_count_at_which_it_did_not(tmp_path):
    recipe = small(tmp_path)
    broken = row([90.0, 91.0, 92.0, 93.0], diverged={"3": "training diverged"})
    broken["last"][3] = None
    (one,) = claims.check_claims(
        recipe, build_findings(tmp_path, recipe, fedu=row([91.0, 92.1, 93.0, 10.0]), local=broken)
    )
    (against,) = one.against
    assert one.verdict == "holds"
    assert against.seeds == 3
    assert against.difference == pytest.approx(3.1 / 3)
    (table,) = claims.build_claim_tables(
        recipe, build_findings(tmp_path, recipe, fedu=row([91.0, 92.1, 93.0, 10.0]), local=broken)
    )
    assert table.rows[0][-1].note == "better, 3 seeds"


def test_a_row_that_diverged_claims_nothing(tmp_path):
    recipe = small(tmp_path)
    broken = row([91.0, 92.1, 93.0], diverged={"2": "training diverged"})
    broken["last"][2] = None
    assert (
        claims.check_claims(
            recipe, build_findings(tmp_path, recipe, fedu=broken, local=row([90.0, 91.0, 92.0]))
        )
        == []
    )


def test_what_two_seeds_cannot_tell_is_undecided(tmp_path):
    one = check_claim(tmp_path, [60.0, 70.0], [90.0, 91.0])
    assert one.against[0].verdict == "undecided"
    assert one.verdict == "undecided"


def test_only_seeds_that_both_have_count(tmp_path):
    recipe = small(tmp_path)
    rows = {"fedu": row([91.0, 92.1, 93.0, 10.0], [0, 1, 2, 9]), "local": row([90.0, 91.0, 92.0], [0, 1, 2])}
    (one,) = claims.check_claims(recipe, build_findings(tmp_path, recipe, **rows))
    assert one.against[0].difference == pytest.approx(3.1 / 3)


def test_the_best_is_marked_only_where_a_test_supports_it(tmp_path):
    def rows(**columns):
        return {name: RowResult(row(values)) for name, values in columns.items()}

    assert score_table.find_best(rows(a=[91.0, 92.1, 93.0], b=[90.0, 91.0, 92.0])) == "a"
    assert score_table.find_best(rows(a=[91.0, 90.0, 93.0], b=[90.0, 91.0, 92.0])) is None
    assert score_table.find_best(rows(a=[91.0], b=[90.0])) is None
    assert score_table.find_best(rows(a=[91.0, 92.0])) is None
    far = rows(a=[91.0, 92.1, 93.0], b=[90.0, 91.0, 92.0], c=[91.0, 92.0, 93.2])
    assert score_table.find_best(far) is None  # not better than c


def test_nothing_is_marked_in_a_column_that_is_not_whole(tmp_path):
    def list_marked(**rows):
        table = score_table.build_score_table(recipe, build_findings(tmp_path, recipe, **rows), "steps")
        return [line[1].best for line in table.rows]

    recipe = small(tmp_path, ("[[claims]]", OTHER))
    two = {"fedu": row([91.0, 92.1, 93.0]), "local": row([90.0, 91.0, 92.0])}
    broken = row([10.0, 11.0, 12.0], diverged={"2": "training diverged"})
    broken["last"][2] = None
    refused = {"seeds": [0, 1, 2], "refused": "…", "refused_seeds": [0, 1, 2], "product": 4.5}
    assert list_marked(**two) == [False, False]
    assert list_marked(**two, other=row([10.0, 11.0, 12.0])) == [False, True, False]
    assert list_marked(**two, other=broken) == [False, False, False]
    assert list_marked(**two, other=refused) == [False, True, False]


def test_the_table_has_ours_beside_the_papers(tmp_path):
    recipe = small(tmp_path)
    findings = build_findings(tmp_path, recipe, fedu=row([90.0, 92.0]), local=row([70.0, 91.0]))
    table = score_table.build_score_table(recipe, findings, "steps")
    assert table.columns == ["method", "digits, convex"]
    assert table.about == "2 seeds."
    assert table.rows[1] == [TableCell("FedU"), TableCell(f"91.00 ± {np.sqrt(2):.2f}", "paper 90.00 ± 1.00")]
    assert table.rows[0][1].text == f"80.50 ± {21 * np.sqrt(0.5):.2f}"
    assert score_table.build_score_table(recipe, build_findings(tmp_path, recipe), "steps") is None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"refused": "…", "refused_seeds": [0, 1], "product": 4.5}, "unstable, μRηρ = 4.5"),
        ({"refused": "…", "refused_seeds": [1], "product": 4.5}, "unstable at 1 of 2 seeds, μRηρ = 4.5"),
        ({"refused": "…", "refused_seeds": [1]}, "invalid settings"),
        ({"diverged": {"1": "…"}}, "1 of 2 diverged"),
    ],
)
def test_a_cell_without_a_score_says_why(tmp_path, values, text):
    recipe = small(tmp_path)
    findings = build_findings(tmp_path, recipe, fedu=row([90.0, 92.0]) | values, local=row([80.0, 81.0]))
    cell = score_table.build_score_table(recipe, findings, "steps").rows[1][1]
    assert (cell.text, cell.muted, cell.best) == (text, True, False)


def test_what_is_far_from_the_paper_needs_a_reason(tmp_path):
    recipe = small(tmp_path)
    near = build_findings(tmp_path, recipe, fedu=row([90.2, 90.6]))
    assert find_deviations(recipe, near) == []
    far = build_findings(tmp_path, recipe, fedu=row([90.4, 90.8]))
    (one,) = find_deviations(recipe, far)
    assert (one.cell, one.row, one.reason) == ("digits-convex", "fedu", None)
    assert one.difference == pytest.approx(0.6)
    assert "NOT EXPLAINED" in results([recipe], far)


@pytest.mark.parametrize(
    ("reason", "fits"),
    [
        ('text = "so"', True),
        ('text = "so"\nside = "above"', True),
        ('text = "so"\nside = "below"', False),
        ('text = "so"\nrows = ["local"]', False),
        ('text = "so"\nreadings = ["epochs"]', False),
        ('text = "so"\ncells = ["digits-convex"]', True),
    ],
)
def test_a_reason_is_for_what_it_names(tmp_path, reason, fits):
    recipe = small(tmp_path, ("[quick]", f"[[reasons]]\n{reason}\n\n[quick]"))
    (one,) = find_deviations(recipe, build_findings(tmp_path, recipe, fedu=row([91.0, 92.0])))
    assert one.reason == ("so" if fits else None)


def steady(tmp_path, **rows):
    """The claim that FedU is steady over two cells, of rows with accuracies for each cell."""
    second = '\n[cells.other]\ntitle = "other"\ndata = { name = "digits" }\nmodel = { name = "linear" }\n'
    small_recipe = small(
        tmp_path, ("[rows.local]", f"{second}\n[rows.local]"), ('against = ["local"]', "against = []")
    )

    class Two(ResultFolder):
        def read(self, recipe, cell, reading):
            here = {name: row(both[cell == "other"]) for name, both in rows.items()}
            return {
                "rows": {
                    n: {"signature": Unit(small_recipe, cell, reading, n).signature, **v}
                    for n, v in here.items()
                }
            }

    return small_recipe, Two(tmp_path)


def test_a_row_is_steady_where_it_changes_less_than_others(tmp_path):
    recipe, findings = steady(
        tmp_path,
        fedu=([90.0, 91.0, 92.0], [91.0, 92.1, 93.0]),
        local=([80.0, 81.0, 82.0], [90.0, 91.1, 91.9]),
    )
    (claim,) = claims.check_claims(recipe, findings)
    assert claim.verdict == "holds"
    assert claim.spreads == pytest.approx({"fedu": 31 / 30, "local": 10.0})
    assert claim.against[0].difference == pytest.approx(10.0 - 31 / 30)
    (table,) = claims.build_claim_tables(recipe, findings)
    assert [cell.note for cell in table.rows[0][2:]] == ["1.03 points", "better, 10.00 points"]


def test_a_row_that_changes_more_than_another_is_not_steady(tmp_path):
    recipe, findings = steady(
        tmp_path,
        fedu=([80.0, 81.0, 82.0], [90.0, 91.1, 91.9]),
        local=([90.0, 91.0, 92.0], [91.0, 92.1, 93.0]),
    )
    (claim,) = claims.check_claims(recipe, findings)
    assert claim.verdict == "DOES NOT HOLD"
    page = "".join(results([recipe], findings))
    assert "points from lowest to highest: FedU 10.00, Local 1.03" in page


def test_results_have_every_number(tmp_path):
    recipe = small(tmp_path)
    text = results(
        [recipe], build_findings(tmp_path, recipe, fedu=row([90.0, 92.0]), local=row([80.0, 81.0]))
    )
    for word in (
        "91.00 ± 1.41",
        "80.50 ± 0.71",
        "90.00 ± 1.00",
        "## Verdicts",
        "fedlap reproduce digits-table",
    ):
        assert word in text
    assert list(build_results_pages([recipe], build_findings(tmp_path, recipe))) == [
        "README.md"
    ]  # nothing was run
    assert "Not run yet" not in text
    half = build_findings(tmp_path, recipe, fedu=row([90.0, 92.0]))
    assert list_missing(recipe, half) == ["steps, of digits-convex local"]
    assert "Not run yet: steps, of digits-convex local." in results([recipe], half)
    assert list_missing(recipe, build_findings(tmp_path, recipe)) == ["steps, all of digits-convex"]


def test_every_page_with_a_verdict_has_the_note_of_the_claim(tmp_path):
    note = ('against = ["local"]', 'against = ["local"]\nnote = "Two seeds\\nonly."')
    recipe = small(tmp_path, note)
    findings = build_findings(tmp_path, recipe, fedu=row([91.0, 92.1]), local=row([90.0, 91.0]))
    pages = build_results_pages([recipe], findings)
    assert len(pages) == 2
    assert all("*FedU is at least as good as Local*: Two seeds only." in page for page in pages.values())
    unfinished = build_findings(tmp_path, recipe, local=row([90.0, 91.0]))
    assert "Two seeds only." not in results([recipe], unfinished)


def test_settings_at_an_end_of_their_range_are_listed(tmp_path):
    recipe = small(tmp_path)

    def choose(*rates):
        choices = {str(seed): {"by": "tuned", "values": {"lr": rate}} for seed, rate in enumerate(rates)}
        values = row([90.0, 91.0, 92.0], choices=choices, grid={"lr": [0.01, 0.03, 0.1]})
        return results([recipe], build_findings(tmp_path, recipe, local=values))

    listed = "At an end of the range for more than half of the seeds"
    text = choose(0.1, 0.01, 0.03)
    assert listed in text
    assert "- digits, convex: Local (lr)." in text
    assert listed not in choose(0.1, 0.03, 0.03)
