package main

import (
	"io"

	"github.com/urfave/cli/v2"
)

// The scripts ask the program itself. It wants to see a flag that is being typed, and
// not a word that is.
const bashCompletion = `_narad_complete() {
  local cur="${COMP_WORDS[COMP_CWORD]}" line=("${COMP_WORDS[@]:0:$COMP_CWORD}")
  [[ "$cur" == -* ]] && line+=("$cur")
  COMPREPLY=($(compgen -W "$("${line[@]}" --generate-bash-completion 2>/dev/null)" -- "$cur"))
}
complete -o bashdefault -o default -F _narad_complete narad
`

const zshCompletion = `#compdef narad
_narad() {
  local -a line opts
  line=("${words[@]:0:$((CURRENT-1))}")
  [[ "${words[CURRENT]}" == -* ]] && line+=("${words[CURRENT]}")
  opts=("${(@f)$("${line[@]}" --generate-bash-completion 2>/dev/null)}")
  _describe 'narad' opts
}
compdef _narad narad
`

func completionCommand() *cli.Command {
	script := func(name, text, how string) *cli.Command {
		return &cli.Command{Name: name, Usage: how, Action: func(c *cli.Context) error {
			_, err := io.WriteString(c.App.Writer, text)
			return err
		}}
	}
	return &cli.Command{
		Name: "completion", Usage: "print a shell's completion script",
		Subcommands: []*cli.Command{
			script("bash", bashCompletion, "source <(narad completion bash)"),
			script("zsh", zshCompletion, "source <(narad completion zsh)"),
		},
	}
}
