"""The scripts by which shells complete steps, options and names of recipes; completing starts no Python."""

from collections.abc import Mapping

from relm.steps.contract import Step

_BASH = """\
_relm() {
    local word="${COMP_WORDS[COMP_CWORD]}" names
    if [ "$COMP_CWORD" -eq 1 ]; then
        names="%(steps)s --help"
    elif [[ "$word" == -* ]]; then
        case "${COMP_WORDS[1]}" in
%(options)s
        esac
    else
        names="$(cd recipes 2>/dev/null && printf '%%s\\n' *.yaml | sed 's/\\.yaml$//')"
    fi
    COMPREPLY=($(compgen -W "$names" -- "$word"))
}
complete -o default -F _relm relm
"""
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
_FISH = """\
complete -c relm -n __fish_use_subcommand -f -a '%(steps)s'
complete -c relm -n 'not __fish_use_subcommand' -a '(string replace -rf "^recipes/(.*)\\.yaml\\$" "\\$1" recipes/*.yaml)'
%(options)s
"""


def write_completion(shell: str, steps: Mapping[str, Step]) -> str:
    """Return the script of a shell: bash, zsh or fish."""
    if shell == "fish":
        lines = [
            f"complete -c relm -n '__fish_seen_subcommand_from {name}' -l {option.removeprefix('--')}"
            for name, step in steps.items()
            for option in _list_options(step)
        ]
        return _FISH % {"steps": " ".join(steps), "options": "\n".join(lines)}
    cases = [f'            {name}) names="{" ".join(_list_options(step))}" ;;' for name, step in steps.items()]
    script = _BASH % {"steps": " ".join(steps), "options": "\n".join(cases)}
    return (_ZSH if shell == "zsh" else "") + script


def _list_options(step: Step) -> list[str]:
    given = [name for names, _ in step.arguments for name in names if name.startswith("--")]
    return [*given, *(["--set", "--print"] if step.takes_name else []), "--log", "--help"]
