"""The verb `bench`. Parse, call, print; help loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.output import errors, log_to, print_json, print_line, print_table
from reverie.cli.verbs import (
    EXPERIMENTS,
    AsJson,
    DeviceName,
    Overwrite,
    SettingTexts,
    parse_names,
    parse_whole_numbers,
    verb,
)


@verb(EXPERIMENTS, example="reverie bench cifar100-10 --methods abd --tasks 2,10")
def bench(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="A preset's name or a YAML file.")] = "cifar100-10",
    methods: Annotated[str, typer.Option(help="Which methods, or all.")] = "base,lwf,deepinversion,abd",
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Which tasks, counted from 1: does a step cost more later on?", show_default="second and last"
        ),
    ] = None,
    modes: Annotated[
        str, typer.Option(help="fp32, tf32 (both eager), captured, fast; the first is what the last is compared with.")
    ] = "fp32,tf32,fast",
    steps: Annotated[int, typer.Option(min=5, max=1_000_000, help="Steps to time in each phase.")] = 100,
    settings: SettingTexts = None,
    device: DeviceName = "auto",
    out: Annotated[Path | None, typer.Option(help="Write everything to this JSON file, too.")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Measure the speed of a training step, by method, phase, task and mode of the engine.

    Needs no data: images are noise of the right shape, which cost the same. On a GPU it compares plain fp32 with the
    fast path; on a CPU there is but one path.
    """
    from reverie.runs.bench import measure_speed
    from reverie.system.files import check_target, write_json
    from reverie.system.provenance import command_line

    log_to(errors)
    if out is not None:
        check_target(out, overwrite)
    with errors.status("preparing") as status:

        def report(what: str, step: str) -> None:
            status.update(f"{what}, {step}" if step else what)
            if not step and not errors.is_terminal:  # where nothing turns, a line for each
                errors.print(what)

        made = measure_speed(
            preset,
            parse_names(methods, "--methods"),
            tasks=parse_whole_numbers(tasks, "--tasks") if tasks is not None else None,
            modes=parse_names(modes, "--modes"),
            steps=steps,
            settings=settings or (),
            device=device,
            command=command_line(),
            report=report,
        )
    if out is not None:
        write_json(out, made.as_dict())
    if as_json:
        print_json(made.as_dict())
        return
    print_table(*made.table())
    if out is not None:
        print_line(out)
