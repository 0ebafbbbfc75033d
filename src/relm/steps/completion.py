"""The script by which bash, and zsh like it, completes steps, options and names of recipes; completing starts no Python."""

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


def write_completion(shell: str, steps: Mapping[str, Step]) -> str:
    """Return the script of a shell: bash or zsh."""
    cases = []
    for name, step in steps.items():
        options = [option for names, _ in step.arguments for option in names if option.startswith("--")]
        options += ["--set", "--print"] if step.takes_name else []
        cases.append(f'            {name}) names="{" ".join([*options, "--log", "--help"])}" ;;')
    return (_ZSH if shell == "zsh" else "") + _BASH % {"steps": " ".join(steps), "options": "\n".join(cases)}
