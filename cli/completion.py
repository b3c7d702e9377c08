# SPDX-License-Identifier: Apache-2.0
"""dfusepy completion: the script that teaches a shell to complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .common import CONTEXT


@click.command(context_settings=CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell. Pools and containers are completed too.

    \b
    Examples:
      dfusepy completion bash >> ~/.bashrc
      dfusepy completion zsh >> ~/.zshrc
      dfusepy completion fish > ~/.config/fish/completions/dfusepy.fish
    """
    made = get_completion_class(shell)
    root = ctx.find_root().command
    assert made is not None, "click knows these three shells"
    # Not source(): it runs bash to see its version, which matters on the user's machine only.
    script = made(root, {}, "dfusepy", "_DFUSEPY_COMPLETE")
    click.echo(script.source_template % script.source_vars())
