"""systems x seeds -> one folder: the same data, budget, updates and batches; table, figure and page."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from odevit.compare.aggregate import row_of
from odevit.compare.executor import WEIGHTS, begun, finished, run_all
from odevit.compare.metrics import milliseconds, spends_the_same
from odevit.compare.plan import Entry, Plan, Terms, all_systems
from odevit.compare.report import write_numbers, write_pictures
from odevit.compare.resume import Results, clear, differences, on_other_terms, read_old, recalled, refusal, terms_of
from odevit.errors import ConfigError, Expected, integer, real, unknown_name, writable
from odevit.train.compose import word
from odevit.train.recipe import device_problems
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, resolve_device

TIMED = {"cpu": 64, "cuda": 512}
"""Images of a batch that is timed."""
REFERENCE = "vit"
"""Times are relative to this system, or to the first where it does not take part."""
MOST_PARAMETERS = 10**9
"""Of a system; widths are searched for to meet the budget, which takes long for those that nobody could train."""
COMMAS = Expected("at least one, several separated by commas", bool)


def compare(
    *,
    systems: Sequence[str] | str = (),
    seeds: Sequence[int] | int = (0, 1, 2),
    data: str = "digits",
    parameters: int | None = None,
    updates: int | None = None,
    epochs: int | None = None,
    seconds: float | None = None,
    out: str | os.PathLike[str] = "runs/comparison",
    images: int = 512,
    processes: int = 1,
    device: str = "auto",
    overwrite: bool = False,
    overrides: tuple[str, ...] = (),
) -> Path:
    """Train systems on the same data with the same budget, updates, batches and seeds, and compare them on one page.

    The folder gets comparison.json, comparison.md, comparison.png and comparison.html, and one run folder for each
    system and seed. Typed again, it goes on where it was; systems and seeds can be added. What fails says why in its
    row. Keys of a recipe (train.batch_size=64, model=small, experiment=fast/cifar10, ...) hold for every system.

    Args:
        systems: names from `odevit train system=?`; all of them unless given.
        seeds: of the first weights, the order of the images and their augmentation.
        data: a name, a folder or a hub id.
        parameters: how many each system may have, met by changing its width and MLP; the recipe's own model unless
            given.
        updates, epochs, seconds: how long each is trained, one of the three; as the recipe says unless given.
        out: the folder.
        images: images of the test split for everything but accuracy, the first so many.
        processes: how many systems are trained at a time; their times then say little.
        device: `auto`, `cpu` or `cuda`.
        overwrite: begin anew where `out` holds a comparison.
        overrides: words of a recipe, for every system: ("train.batch_size=64",).
    """
    names, numbers = as_list(systems) or list(all_systems()), as_list(seeds)
    length = {"updates": updates, "epochs": epochs, "seconds": seconds}
    terms = Terms(
        data=data,
        words=tuple(overrides),
        parameters=parameters,
        length={key: value for key, value in length.items() if value is not None},
        images=images,
        device=device,
    )
    folder = Path(out)
    old = {} if overwrite else read_old(folder)
    check(terms, names, numbers, folder, processes, old)
    began, found = time.perf_counter(), {} if overwrite else recalled(folder, old)
    # Of all that the page will show, so that what others asked for keeps its changes, its time and its place.
    plan = Plan(terms, [*found, *names], [*numbers, *(seed for results in found.values() for seed in results)], folder)
    if overwrite:
        clear(folder)
    elif problems := on_other_terms(plan):
        raise ConfigError("the comparison", problems)
    say(
        *plan.said,
        f"{len(plan.systems)} systems x {len(plan.seeds)} seeds, {plan.budget:,} parameters each -> {folder}",
    )
    folder.mkdir(parents=True, exist_ok=True)
    board = Board(plan, processes, found, old)
    asked = [entry for entry in plan.entries() if entry.system in names and entry.seed in numbers]
    left = [entry for entry in asked if not board.has(entry)]
    if len(left) < len(asked):
        say(f"{len(asked) - len(left)} of {len(asked)} runs are finished already")
    try:
        board.write(began)
        for count, (entry, result) in enumerate(run_all(left, processes), start=1):
            board.take(entry, result)
            board.write(began)
            say(progress(entry, result, count, len(left), began))
        board.time()
        board.write(began)
    finally:  # who interrupts it can look at what there is
        write_pictures(folder)
    return folder


def check(
    terms: Terms, systems: Sequence[str], seeds: Sequence[int], folder: Path, processes: int, old: Mapping[str, Any]
) -> None:
    """Everything that is wrong with what was asked, before the first minute of work."""
    known = all_systems()
    problems = [
        *(f"systems: {unknown_name('system', name, known)}" for name in systems if name not in known),
        *COMMAS.problem("seeds", seeds),
        *(problem for seed in seeds for problem in integer(0, 2**32 - 1).problem("seeds", seed)),
        *integer(1, MOST_PARAMETERS, optional=True).problem("parameters", terms.parameters),
        *(
            problem
            for key, value in terms.length.items()
            for problem in (real(above=0) if key == "seconds" else integer(1)).problem(key, value)
        ),
        *integer(1).problem("images", terms.images),
        *integer(1, 64).problem("processes", processes),
        *device_problems(terms.device),
        *writable("out", folder, folder=True),
    ]
    if len(terms.length) > 1:
        problems.append(f"{' and '.join(terms.length)} were given; expected one of updates=, epochs= and seconds=")
    if old and (changed := differences(terms_of(old), terms.numbers())):
        problems.append(refusal(f"{folder} holds a comparison", changed))
    if problems:
        raise ConfigError("the comparison", problems)


class Board:
    """The results so far, and what is written of them."""

    def __init__(self, plan: Plan, processes: int, found: Results, old: Mapping[str, Any]) -> None:
        self.plan, self.processes, self.about = plan, processes, all_systems()
        self.results = {system: dict(found.get(system, {})) for system in plan.systems}
        self.milliseconds: dict[str, float] = {}
        # Of a comparison that is begun anew nothing is left, its seconds neither.
        self.before = old.get("seconds", {}).get("total", 0.0) if found else 0.0

    def has(self, entry: Entry) -> bool:
        """Whether an entry is finished; what failed is tried again."""
        result = self.results[entry.system].get(entry.seed)
        return result is not None and not result["failure"]

    def take(self, entry: Entry, result: dict[str, Any]) -> None:
        self.results[entry.system][entry.seed] = result

    def time(self) -> None:
        """Milliseconds of each system's first finished seed, in turns.

        A run whose weights were not kept is timed with new ones, if these spend what the old ones did on every image.
        """
        device = resolve_device(self.plan.terms.device)
        size = TIMED[device.type]
        batches = evaluation_batches(self.plan.data, "test", size, limit=size, device=device)
        pixels, models = next(iter(batches))["pixel_values"], {}
        for system in self.plan.systems:
            done = sorted(seed for seed, result in self.results[system].items() if not result["failure"])
            if not done or system not in self.plan.changes:
                continue
            recipe = self.plan.entry(system, done[0]).recipe()
            kept = (recipe.folder / WEIGHTS).exists()
            model = (finished if kept else begun)(recipe).network
            if kept or spends_the_same(model, pixels, self.results[system][done[0]]["measured"]["nfe"]):
                models[system] = model
        self.milliseconds = milliseconds(models, pixels)

    def write(self, began: float) -> None:
        """The numbers as they stand."""
        write_numbers(self.plan.out, self.numbers(time.perf_counter() - began))

    def numbers(self, seconds: float) -> dict[str, Any]:
        """The content of comparison.json."""
        device = resolve_device(self.plan.terms.device)
        reference = REFERENCE if REFERENCE in self.milliseconds else next(iter(self.milliseconds), "")
        rows = [self.row(system, reference) for system in self.plan.systems]
        hashes: dict[int, set[str]] = {}
        for seed in (seed for row in rows for seed in row["seeds"] if "batches" in seed):
            hashes.setdefault(seed["seed"], set()).add(seed["batches"])
        memory = next((row["memory"]["how"] for row in rows if "memory" in row), "not measured")
        return {
            "command": command_of(self.plan, self.processes),
            "settings": self.plan.terms.numbers(),
            "seeds": self.plan.seeds,
            "parameters": self.plan.budget,
            "classes": self.plan.data.num_classes,
            "test_images": len(self.plan.data.test),
            "same_batches": all(len(found) == 1 for found in hashes.values()),
            "reference": reference,
            "memory_how": memory,
            "processes": self.processes,
            "device": device_name(device),
            "versions": versions(),
            "seconds": {"total": self.before + seconds, "processor": time.process_time()},
            "rows": rows,
        }

    def row(self, system: str, reference: str) -> dict[str, Any]:
        plan, results = self.plan, dict(sorted(self.results[system].items()))
        if system in plan.refused:
            results = {seed: {"failure": plan.refused[system]} for seed in plan.seeds}
        facts = {"about": self.about[system], "changed": plan.changes.get(system), "asked": len(plan.seeds)}
        row = row_of(system, results, **facts)
        if system in self.milliseconds:
            taken = self.milliseconds[system]
            row |= {"milliseconds": taken, "relative": taken / self.milliseconds[reference]}
        return row


def progress(entry: Entry, result: Mapping[str, Any], count: int, of: int, began: float) -> str:
    """What has come of an entry, and how long the rest may take."""
    said = f"failed: {result['failure']}" if result["failure"] else f"{result['top1']:.2%} in {result['seconds']:.0f} s"
    left = (time.perf_counter() - began) / count * (of - count)
    return f"{count} of {of}  {entry.system}, seed {entry.seed}: {said}" + (
        f"  (about {left:.0f} s left)" if left else ""
    )


def say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | int) else list(value)


def command_of(plan: Plan, processes: int) -> str:
    """The command that makes this comparison."""
    terms = plan.terms
    keys: dict[str, Any] = {
        "systems": ",".join(plan.systems),
        "seeds": ",".join(map(str, plan.seeds)),
        "data": terms.data,
        "parameters": terms.parameters,
        **terms.length,
        "images": terms.images,
        "processes": processes,
        "device": terms.device,
        "out": plan.out,
    }
    typed = [f"{key}={word(value)}" for key, value in keys.items() if value is not None]
    return shlex.join(["odevit", "compare", *typed, *terms.words])
