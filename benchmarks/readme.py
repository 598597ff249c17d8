"""Fill the tables of the README from records/ and benchmarks/: python benchmarks/readme.py [--check]."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def records_table() -> str:
    lines = [
        "| model | data | params | NFE | ms/image | test top-1 | seeds | epochs | training time | device |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted((ROOT / "records").glob("*/record.json")):
        record = json.loads(path.read_text())
        spread = f" ± {100 * record['top1_spread']:.2f}" if record["top1_spread"] is not None else ""
        name = path.parent.name
        cells = [
            f"[{name}](records/{name}/record.json)",
            Path(record["data"]).name,
            f"{record['params'] / 1e6:.2f}M",
            str(record["nfe"]),
            f"{record['milliseconds']:.3f}",
            f"{100 * record['top1']:.2f}%{spread}",
            str(len(record["seeds"])),
            str(record["epochs"]),
            f"{record['seconds']:.0f} s",
            record["device"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def integration_table() -> str:
    path = "records/fast-cifar10/integration.json"
    report = json.loads((ROOT / path).read_text())
    own = [s for s in report["scores"] if s["solver"] == "lie_trotter"]
    horizon = min(s["horizon"] for s in own)

    def cell(score: dict) -> str:
        return f"{100 * score['score']['top1']:.1f}"

    steps = [s for s in own if s["horizon"] == horizon]
    longer = [s for s in own if s["horizon"] > horizon]
    others = [s for s in report["scores"] if s["solver"] != "lie_trotter"]
    rows = [
        ("Lie-Trotter, steps " + " / ".join(str(s["steps"]) for s in steps), " / ".join(map(cell, steps))),
        (
            "the same step, horizon " + " / ".join(f"{s['horizon'] / horizon:.0f}x" for s in longer),
            " / ".join(map(cell, longer)),
        ),
        *(
            (f"{s['solver']}" + (f", {s['steps']} steps" if s["solver"] != "dopri5" else ", its own steps"), cell(s))
            for s in others
        ),
    ]
    count = report["images"]
    spread = 100 * (0.92 * 0.08 / count) ** 0.5  # of a proportion near 92%
    head = (
        f"The bundled model was trained with Lie-Trotter only. Accuracy in percent on the first {count:,} test images "
        f"(one model; a standard error is {spread:.1f} points), the same weights integrated in other ways "
        f"([{path}]({path})):\n\n| integration | top-1 (%) |\n|---|---|\n"
    )
    return head + "\n".join(f"| {name} | {value} |" for name, value in rows)


TABLES = {"records": records_table, "integration": integration_table}


def filled(text: str) -> str:
    for name, make in TABLES.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text = re.sub(pattern, lambda match, make=make: match[1] + make() + "\n" + match[2], text, flags=re.S)
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    new = filled(readme.read_text())
    if "--check" in sys.argv:
        sys.exit(
            0 if new == readme.read_text() else "README.md is not what the records say; python benchmarks/readme.py"
        )
    readme.write_text(new)
