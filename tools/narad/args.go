package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/proc"
)

// permute lets flags stand anywhere: the library stops at the first argument that is
// none. The result is: global flags, command path, its flags, "--", arguments. What
// follows a "--" is never taken for a flag.
func permute(app *cli.App, args []string) ([]string, error) {
	if len(args) == 0 || args[len(args)-1] == "--generate-bash-completion" {
		return args, nil
	}
	var global, path, flags, rest []string
	var current *cli.Command
	commands, local := app.Commands, []cli.Flag(nil)
	for i := 1; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			rest = append(rest, args[i+1:]...)
			i = len(args)
		case len(a) > 1 && a[0] == '-':
			name, _, inline := strings.Cut(strings.TrimLeft(a, "-"), "=")
			flag, isLocal := find(local, name), true
			if flag == nil {
				flag, isLocal = find(app.Flags, name), false
			}
			part := []string{a}
			if flag != nil && !inline && takesValue(flag) && i+1 < len(args) {
				i++
				part = append(part, args[i])
			}
			if flag != nil && !isLocal {
				global = append(global, part...)
			} else {
				flags = append(flags, part...)
			}
		case len(commands) > 0:
			next := command(commands, a)
			if next == nil {
				return nil, unknownCommand(current, a, commands)
			}
			current, path = next, append(path, a)
			commands, local = next.Subcommands, next.Flags
		default:
			rest = append(rest, a)
		}
	}
	out := slices.Concat([]string{args[0]}, global, path, flags)
	if len(rest) > 0 {
		out = append(append(out, "--"), rest...)
	}
	return out, nil
}

func find(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

func command(all []*cli.Command, name string) *cli.Command {
	for _, c := range all {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

func unknownCommand(parent *cli.Command, name string, known []*cli.Command) error {
	where := "narad"
	if parent != nil {
		where += " " + parent.Name
	}
	var names []string
	for _, c := range known {
		names = append(names, c.Name)
	}
	return proc.Usagef("%s has no command %q; it has: %s", where, name, strings.Join(names, ", "))
}
