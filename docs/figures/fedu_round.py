"""Draw one round of FedU: what the server and the clients do, and where this is in the code."""

import math
from html import escape

from figure_files import BLUE, FAINT, INK, ORANGE, PAPER, Facts, run_script

NAME = "fedu-round"
WIDTH, HEIGHT = 900, 470
CLIENTS, COHORT = 6, (1, 4)
COLOURS = {1: BLUE, 4: ORANGE}
EDGES = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4))
STAGES = (
    ("1  draw the cohort", "S of N clients", "training/client_sampling.py", "draw"),
    ("2  send", "its row of W, to each sampled client", "algorithms/fedu.py", "send"),
    ("3  local", "R times w ← w − μ∇F̃(w)", "algorithms/fedu.py", "local"),
    ("4  merge", "w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)", "algorithms/fedu.py", "merge"),
    ("5  store", "the new rows of W", "training/state.py", "apply_updates"),
)
TEXT = 'font-family="DejaVu Sans, Verdana, sans-serif"'


def compute() -> Facts:
    """Return the stages and where they are in the code."""
    return {"stages": [list(stage) for stage in STAGES]}


def write(
    x: float, y: float, text: str, size: float = 12, weight: str = "normal", anchor: str = "start"
) -> str:
    """Return a line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{INK}" {TEXT}>{escape(text)}</text>'
    )


def draw_box(x: float, y: float, width: float, height: float, fill: str, stroke: str = INK) -> str:
    """Return a rectangle with round corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}" '
        f'stroke="{stroke}"/>'
    )


def draw_arrow(x: float, y: float, to_x: float, to_y: float, colour: str = INK) -> str:
    """Return a line with a head."""
    angle = math.atan2(to_y - y, to_x - x)
    wings = [(to_x - 9 * math.cos(angle + turn), to_y - 9 * math.sin(angle + turn)) for turn in (-0.4, 0.4)]
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in ((to_x, to_y), *wings))
    return (
        f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{colour}" stroke-width="1.6"/>'
        f'<polygon points="{points}" fill="{colour}"/>'
    )


def draw_models(x: float, y: float, changed: bool) -> str:
    """Return the table W with one row per client; the rows of sampled clients have colours."""
    parts = []
    for row in range(CLIENTS):
        colour = COLOURS.get(row, FAINT)
        for column in range(5):
            parts.append(draw_box(x + 17 * column, y + 15 * row, 15, 12, colour, colour))
        parts.append(
            write(
                x - 6,
                y + 15 * row + 10,
                f"w{'₀₁₂₃₄₅'[row]}{'⁺' if changed and row in COHORT else ''}",
                10,
                anchor="end",
            )
        )
    return "".join(parts)


def draw_graph(x: float, y: float, radius: float) -> str:
    """Return the graph of the clients, with the pulls on the sampled ones."""
    places = [
        (x + radius * math.cos(2 * math.pi * place / CLIENTS - math.pi / 2),
         y + radius * math.sin(2 * math.pi * place / CLIENTS - math.pi / 2))
        for place in range(CLIENTS)
    ]  # fmt: skip
    parts = []
    for edge in EDGES:
        (ax, ay), (bx, by) = (places[end] for end in edge)
        colour = next((COLOURS[end] for end in edge if end in COHORT), FAINT)
        ends = f'x1="{ax:.1f}" y1="{ay:.1f}" x2="{bx:.1f}" y2="{by:.1f}"'
        parts.append(f'<line {ends} stroke="{colour}" stroke-width="1.6"/>')
    for place, (px, py) in enumerate(places):
        colour = COLOURS.get(place, FAINT)
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="8" fill="{colour}" stroke="{INK}"/>')
    return "".join(parts)


def describe_stage(stage: int, x: float, y: float, anchor: str = "start") -> str:
    """Return the title, the formula and the place in the code of a stage."""
    title, formula, path, name = STAGES[stage]
    return (
        write(x, y, title, 13, "bold", anchor) + write(x, y + 17, formula, 11.5, anchor=anchor)
        + write(x, y + 33, f"{path}: {name}", 9.5, anchor=anchor)
    )  # fmt: skip


def draw(facts: Facts) -> str:
    """Draw the server's lane above the clients' lane."""
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {size}>',
        f'<rect x="0" y="0" {size} fill="{PAPER}"/>',
        draw_box(8, 8, WIDTH - 16, 218, PAPER, FAINT),
        draw_box(8, 262, WIDTH - 16, 200, PAPER, FAINT),
        write(20, 30, "SERVER: models and graph, no rows", 11, "bold"),
        write(20, 454, "CLIENTS: rows never leave", 11, "bold"),
        describe_stage(0, 48, 58),
        draw_models(48, 110, False),
        describe_stage(3, 440, 58),
        draw_graph(560, 158, 46),
        describe_stage(4, 710, 58),
        draw_models(750, 110, True),
        draw_arrow(640, 155, 712, 155),
        describe_stage(1, 20, 362),
        describe_stage(2, 290, 288),
    ]
    for row, client in enumerate(COHORT):
        colour, y = COLOURS[client], 335 + 52 * row
        parts += [
            draw_arrow(140, 131 + 45 * row, 286, y + 20, colour),
            draw_box(290, y, 240, 42, PAPER, colour),
            *(draw_box(300 + 17 * column, y + 15, 15, 12, colour, colour) for column in range(5)),
            write(392, y + 18, f"client {client}", 11, "bold"),
            write(392, y + 33, "its model, its rows", 10.5),
            draw_arrow(534, y + 20, 552 + 24 * row, 216, colour),
        ]
    parts.append(write(586, 300, "upload: w after R steps", 11))
    return "\n".join([*parts, "</svg>"])


if __name__ == "__main__":
    run_script(NAME, compute, draw)
