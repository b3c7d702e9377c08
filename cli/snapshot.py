# SPDX-License-Identifier: Apache-2.0
"""dfusepy container snapshot: create, list, destroy."""

from __future__ import annotations

from typing import Any

import click

from dfusepy import pools

from .common import CONTEXT, CliError, WrongUsage, confirm, emit, format_time, json_option, table
from .names import container_argument, open_container
from .progress import spinner


@click.group(context_settings=CONTEXT)
def snapshot() -> None:
    """Snapshots of a container: create, list, destroy.

    A snapshot keeps the container as it was; mount it with `dfusepy mount POOL/CONTAINER
    MOUNTPOINT -o snapshot=NAME`.
    """


name_argument = click.argument("name")


@snapshot.command(context_settings=CONTEXT)
@container_argument
@name_argument
@json_option
def create(container: str, name: str, as_json: bool) -> None:
    """Keep the container's present state under a NAME.

    \b
    Example:
      dfusepy container snapshot create demo/data before-upgrade
    """
    doing = f"cannot create snapshot '{name}' of '{container}'"
    try:
        pools.check_label(name, "snapshot name")
    except pools.BadNameError as err:
        raise WrongUsage(doing, str(err)) from None
    with open_container(container, doing) as cont:
        try:
            epoch = cont.snapshot_create(name)
        except FileExistsError:
            raise CliError(
                doing,
                "a snapshot of this name exists",
                f"`dfusepy container snapshot list {container}` shows them.",
            ) from None
    emit({"name": name, "epoch": epoch}, as_json, lambda _: f"Snapshot {name} is made.")


def list_text(infos: list[dict[str, Any]]) -> str:
    if not infos:
        return "No snapshots."
    return table(
        ((info["name"], str(info["epoch"]), format_time(info["created_ns"])) for info in infos),
        ("SNAPSHOT", "EPOCH", "CREATED"),
    )


@snapshot.command("list", context_settings=CONTEXT)
@container_argument
@json_option
def list_(container: str, as_json: bool) -> None:
    """List the snapshots of a container, oldest first.

    \b
    Example:
      dfusepy container snapshot list demo/data --json
    """
    with open_container(container, f"cannot list snapshots of '{container}'") as cont:
        infos = [info.as_dict() for info in cont.snapshots()]
    emit(infos, as_json, list_text)


@snapshot.command(context_settings=CONTEXT)
@container_argument
@name_argument
@click.option("--force", is_flag=True, help="Do not ask.")
def destroy(container: str, name: str, force: bool) -> None:
    """Destroy a snapshot and free what only it could see. Asks first.

    \b
    Example:
      dfusepy container snapshot destroy demo/data before-upgrade --force
    """
    doing = f"cannot destroy snapshot '{name}' of '{container}'"
    with open_container(container, doing) as cont:
        if name not in [info.name for info in cont.snapshots()]:
            raise CliError(
                doing,
                "there is no such snapshot",
                f"`dfusepy container snapshot list {container}` shows them.",
            )
    confirm(f"Snapshot '{name}' of '{container}' holds data", force, doing)
    with open_container(container, doing) as cont, spinner(f"Destroying snapshot {name}"):
        cont.snapshot_destroy(name)
    click.echo(f"Snapshot {name} of {container} is gone.")
