# SPDX-License-Identifier: Apache-2.0
"""dfusepy il: what the interception library did in a process, and why not more."""

from __future__ import annotations

import os
from typing import Any

import click

from dfusepy import interception
from dfusepy.interception import Account

from .common import CONTEXT, CliError, emit, format_size, json_option, table


def _share(account: Account) -> str:
    whole = account.bypassed_bytes + account.left_bytes
    return f"{100 * account.bypassed_bytes / whole:.1f} %" if whole else "-"


def _session(account: Account) -> str:
    if not account.attached:
        return "no session was opened"
    sessions = "one session" if account.attached == 1 else f"{account.attached} sessions"
    return f"{sessions} opened in {account.attach_us / 1000 / account.attached:.2f} ms"


def _counts(account: Account) -> str:
    rows = [
        (call, f"{tally.calls:,}", format_size(tally.bytes), "bypassed")
        for call, tally in account.bypassed.items()
    ]
    for call, reasons in account.left.items():
        for reason, tally in reasons.items():
            why = f"{reason}: {interception.REASONS.get(reason, 'told by a newer library')}"
            rows.append((call, f"{tally.calls:,}", format_size(tally.bytes), why))
    if account.short.calls:
        why = "ended before it was worth asking whether that was a mount"
        rows.append(("any", f"{account.short.calls:,}", format_size(account.short.bytes), why))
    if not rows:
        return "No data call on a mount."
    return table(rows, ("CALL", "CALLS", "BYTES", "BYPASSED, OR WHY NOT"))


def _programs(accounts: list[Account]) -> str:
    by_exe: dict[str, list[Account]] = {}
    for account in accounts:
        by_exe.setdefault(account.exe, []).append(account)
    rows = []
    for exe, runs in sorted(by_exe.items()):
        whole = interception.total(runs)
        moved = format_size(whole.bypassed_bytes + whole.left_bytes)
        rows.append((exe, str(len(runs)), str(whole.attached), moved, _share(whole)))
    return table(rows, ("PROGRAM", "RUNS", "SESSIONS", "BYTES", "BYPASSED"))


def _render(accounts: list[Account]) -> str:
    whole = interception.total(accounts)
    if len(accounts) == 1:
        [one] = accounts
        head = f"{one.exe} ({one.pid}): {_session(one)}; {_share(one)} of the bytes bypassed."
        return f"{head}\n\n{_counts(one)}"
    head = f"{len(accounts)} programs; {_share(whole)} of the bytes bypassed."
    return f"{head}\n\n{_programs(accounts)}\n\n{_counts(whole)}"


def _load(target: str, doing: str) -> list[Account]:
    try:
        if target.isdigit() and not os.path.exists(target):
            return [interception.of_process(int(target))]
        return interception.read_report(target)
    except OSError as err:
        raise CliError(
            doing,
            err.strerror or str(err),
            "Start programs with `dfusepy run`; only their user and root may look at them.",
        ) from None
    except ValueError as err:
        raise CliError(doing, str(err)) from None


@click.group(context_settings=CONTEXT)
def il() -> None:
    """Interception: what bypassed the kernel."""


@il.command(context_settings=CONTEXT)
@click.argument("target", metavar="PID|REPORT")
@json_option
def explain(target: str, as_json: bool) -> None:
    """Tell, for each data call that was not bypassed, why.

    PID is a running process; REPORT a file that `dfusepy run --report` wrote.

    \b
    Examples:
      dfusepy il explain 4242
      dfusepy il explain /tmp/report --json
    """
    accounts = _load(target, f"explaining {target}")
    data: dict[str, Any] = {
        "programs": [account.as_json() for account in accounts],
        "total": interception.total(accounts).as_json(),
    }
    emit(data, as_json, lambda _: _render(accounts))
