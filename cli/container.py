# SPDX-License-Identifier: Apache-2.0
"""dfusepy container: create, list, query, destroy, get-prop, set-prop, check."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from .common import CONTEXT, CliError, confirm, emit, fields, format_time, json_option, table
from .names import container_argument, open_container, open_pool, pool_argument, split_name
from .progress import bar, spinner
from .snapshot import snapshot


@click.group(context_settings=CONTEXT)
def container() -> None:
    """Containers in a pool: create, list, check, snapshot.

    A container is what you mount. It is named POOL/CONTAINER.
    """


container.add_command(snapshot)


def file_mode(text: str) -> int:
    """The type of --mode: permission bits in octal."""
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777:
        raise click.BadParameter(f"'{text}' is no mode; write it in octal, like 755")
    return mode


@container.command(context_settings=CONTEXT)
@container_argument
@click.option(
    "--type",
    "kind",
    type=click.Choice(["posix", "objects"]),
    default="posix",
    show_default=True,
    help="With a file system in it, or bare for the object API.",
)
@click.option("--mode", type=file_mode, default="755", show_default=True, help="Of the root.")
@click.option("--owner", type=(int, int), metavar="UID GID", help="Of the root; else you.")
def create(container: str, kind: str, mode: int, owner: tuple[int, int] | None) -> None:
    """Create a container.

    \b
    Examples:
      dfusepy container create demo/data
      dfusepy container create demo/shared --mode 1777
      dfusepy container create demo/records --type objects
    """
    doing = f"cannot create container '{container}'"
    pool_name, label = split_name(container, doing)
    uid, gid = owner or (os.geteuid(), os.getegid())
    if uid < 0 or gid < 0:
        raise click.BadParameter("user and group ids are not negative", param_hint="--owner")
    with open_pool(pool_name, doing) as pool:
        try:
            pool.container_create(label, kind == "posix", uid, gid, mode=mode)
        except FileExistsError:
            raise CliError(
                doing, "it exists already", f"`dfusepy container list {pool_name}` shows them."
            ) from None
    click.echo(f"Container {container} is made.")
    if kind == "posix":
        click.echo(f"Next: dfusepy mount {container} MOUNTPOINT")


def list_text(infos: list[dict[str, Any]]) -> str:
    if not infos:
        return "No containers. `dfusepy container create POOL/data` makes one."
    return table(
        (
            (info["label"], str(info["snapshots"]), format_time(info["created_ns"]))
            for info in infos
        ),
        ("CONTAINER", "SNAPSHOTS", "CREATED"),
    )


@container.command("list", context_settings=CONTEXT)
@pool_argument
@json_option
def list_(pool: str, as_json: bool) -> None:
    """List the containers of a pool.

    \b
    Example:
      dfusepy container list demo
    """
    with open_pool(pool, f"cannot list containers of '{pool}'") as handle:
        infos = [info.as_dict() for info in handle.containers()]
    emit(infos, as_json, list_text)


def query_text(info: dict[str, Any]) -> str:
    return fields(
        {
            "label": info["label"],
            "uuid": info["uuid"],
            "number": str(info["number"]),
            "created": format_time(info["created_ns"]),
            "snapshots": str(info["snapshots"]),
            "comment": info["comment"] or "-",
        }
    )


@container.command(context_settings=CONTEXT)
@container_argument
@json_option
def query(container: str, as_json: bool) -> None:
    """Show what a container is.

    \b
    Example:
      dfusepy container query demo/data --json
    """
    with open_container(container, f"cannot query '{container}'") as cont:
        info = {**cont.query().as_dict(), "comment": cont.get_prop("comment") or ""}
    emit(info, as_json, query_text)


@container.command(context_settings=CONTEXT)
@container_argument
@click.option("--force", is_flag=True, help="Do not ask.")
def destroy(container: str, force: bool) -> None:
    """Destroy a container, its data and its snapshots. Asks first.

    \b
    Examples:
      dfusepy container destroy demo/data
      dfusepy container destroy demo/data --force
    """
    doing = f"cannot destroy container '{container}'"
    pool_name, label = split_name(container, doing)
    with open_container(container, doing) as cont:
        snapshots = cont.query().snapshots
    also = f" and {snapshots} snapshots" if snapshots else ""
    confirm(f"Container '{container}' holds data{also}", force, doing)
    with open_pool(pool_name, doing) as pool, spinner(f"Destroying {container}"):
        pool.container_destroy(label)
    click.echo(f"Container {container} is gone.")


# -- properties -----------------------------------------------------------------------------------

# Name -> (whether it may be set, what it is). Only what something honours is a property.
PROPERTIES = {
    "label": (False, "the container's name"),
    "uuid": (False, "its identity, for ever"),
    "created": (False, "when it was made"),
    "comment": (True, "a text of yours, shown by `container query`"),
}
GET_PROP_HELP = """Show properties of a container: the named ones, or all.

\b
Example:
  dfusepy container get-prop demo/data comment

\b
Properties:
""" + "\n".join(
    f"  {name.ljust(8)} {text}{'' if settable else ' (read-only)'}"
    for name, (settable, text) in PROPERTIES.items()
)


def get(cont: Any, name: str) -> str:
    info = cont.query()
    fixed = {"label": info.label, "uuid": info.uuid, "created": format_time(info.created_ns)}
    return fixed[name] if name in fixed else cont.get_prop(name) or ""


@container.command("get-prop", context_settings=CONTEXT, help=GET_PROP_HELP)
@container_argument
@click.argument("names", nargs=-1, type=click.Choice(list(PROPERTIES)), metavar="[NAME]...")
@json_option
def get_prop(container: str, names: tuple[str, ...], as_json: bool) -> None:
    doing = f"cannot get properties of '{container}'"
    with open_container(container, doing) as cont:
        values = {name: get(cont, name) for name in names or PROPERTIES}
    emit(values, as_json, fields)


@container.command("set-prop", context_settings=CONTEXT)
@container_argument
@click.argument("assignment", metavar="NAME=VALUE")
def set_prop(container: str, assignment: str) -> None:
    """Set a property of a container.

    \b
    Example:
      dfusepy container set-prop demo/data comment="training set, spring"
    """
    name, equals, value = assignment.partition("=")
    if not equals:
        raise click.UsageError(f"'{assignment}' is no assignment: write NAME=VALUE")
    settable = [known for known, (may, _) in PROPERTIES.items() if may]
    if name not in settable:
        why = "is read-only" if name in PROPERTIES else "is no property"
        raise click.UsageError(f"'{name}' {why}; what can be set: {', '.join(settable)}")
    if not value.isprintable() or len(value.encode()) > 1000:
        raise click.UsageError("a value is at most 1000 bytes of printable text")
    with open_container(container, f"cannot set '{name}' of '{container}'") as cont:
        cont.set_prop(name, value)


# -- check ----------------------------------------------------------------------------------------


def check_text(result: dict[str, Any]) -> str:
    faults = result["faults"]
    if not faults:
        return f"{result['container']}: no faults."
    found = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    return "\n".join([*faults, f"{result['container']}: {found}."])


@container.command(context_settings=CONTEXT)
@container_argument
@click.option("--data", is_flag=True, help="Read and verify all file data too.")
@json_option
def check(container: str, data: bool, as_json: bool) -> None:
    """Check a container: its keys, extents and names, and with --data every checksum.

    Nothing is changed. The exit status is 1 when there are faults.

    \b
    Examples:
      dfusepy container check demo/data
      dfusepy container check demo/data --data --json
    """
    doing = f"cannot check '{container}'"
    with open_container(container, doing) as cont, bar("Checking") as progress:
        faults = cont.check(data, progress)
    emit({"container": container, "faults": faults}, as_json, check_text)
    sys.exit(1 if faults else 0)
