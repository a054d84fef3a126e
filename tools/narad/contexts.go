package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/proc"
)

// attempts of one call: a person who waits at a terminal wants the error within seconds.
const attempts = 5

// contexts is the file of named servers.
type contexts struct {
	Selected string            `json:"selected"`
	Servers  map[string]string `json:"servers"` // name to URLs, separated by commas
}

func contextsFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the configuration directory: %w", err)
	}
	return filepath.Join(dir, "narad", "contexts.json"), nil
}

func loadContexts() (contexts, error) {
	all := contexts{Servers: map[string]string{}}
	path, err := contextsFile()
	if err != nil {
		return all, err
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return all, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil {
		return all, fmt.Errorf("read contexts from %s: %w", path, err)
	}
	if all.Servers == nil {
		all.Servers = map[string]string{}
	}
	return all, nil
}

// save replaces the file; only its owner may read it.
func (all contexts) save() error {
	path, err := contextsFile()
	if err != nil {
		return err
	}
	raw, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("save contexts: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".contexts-*") // 0600
	if err != nil {
		return fmt.Errorf("save contexts: %w", err)
	}
	_, err = f.Write(append(raw, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("save contexts: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// server is --server, NARAD_URL, the selected context, or the default, in this order.
func server(c *cli.Context) (string, error) {
	if s := c.String("server"); s != "" {
		return s, nil
	}
	all, err := loadContexts()
	if err != nil {
		return "", err
	}
	if s := all.Servers[all.Selected]; s != "" {
		return s, nil
	}
	return client.DefaultURL, nil
}

func connect(c *cli.Context) (*client.Client, error) {
	urls, err := server(c)
	if err != nil {
		return nil, err
	}
	cl, err := newClient(urls)
	if err != nil {
		return nil, proc.Usagef("%v", err)
	}
	return cl, nil
}

func newClient(urls string) (*client.Client, error) {
	cfg := client.Config{UserAgent: "narad-cli/" + proc.Release, Retry: client.Retry{Attempts: attempts}}
	for u := range strings.SplitSeq(urls, ",") {
		cfg.URLs = append(cfg.URLs, strings.TrimSpace(u))
	}
	return client.New(cfg)
}

func ctxCommand() *cli.Command {
	return &cli.Command{
		Name: "ctx", Usage: "named servers, so that --server need not be typed",
		Subcommands: []*cli.Command{
			{Name: "add", Usage: "name a server and select it", ArgsUsage: "NAME URL[,URL..]", Action: ctxAdd},
			{Name: "ls", Usage: "list them; the selected one has a star", Action: ctxList},
			{Name: "use", Usage: "select one", ArgsUsage: "NAME", Action: ctxUse},
			{Name: "rm", Usage: "forget one", ArgsUsage: "NAME", Action: ctxRemove},
		},
	}
}

func ctxAdd(c *cli.Context) error {
	if err := wantArgs(c, 2, 2); err != nil {
		return err
	}
	name, urls := c.Args().Get(0), c.Args().Get(1)
	if _, err := newClient(urls); err != nil {
		return proc.Usagef("%v", err)
	}
	return editContexts(func(all *contexts) error {
		all.Servers[name], all.Selected = urls, name
		return nil
	})
}

func ctxUse(c *cli.Context) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	return editContexts(func(all *contexts) error {
		name := c.Args().First()
		if _, ok := all.Servers[name]; !ok {
			return fmt.Errorf("no context %q; `narad ctx ls` lists them", name)
		}
		all.Selected = name
		return nil
	})
}

func ctxRemove(c *cli.Context) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	return editContexts(func(all *contexts) error {
		name := c.Args().First()
		if _, ok := all.Servers[name]; !ok {
			return fmt.Errorf("no context %q; `narad ctx ls` lists them", name)
		}
		delete(all.Servers, name)
		if all.Selected == name {
			all.Selected = ""
		}
		return nil
	})
}

func editContexts(edit func(*contexts) error) error {
	all, err := loadContexts()
	if err != nil {
		return err
	}
	if err := edit(&all); err != nil {
		return err
	}
	return all.save()
}

func ctxList(c *cli.Context) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	all, err := loadContexts()
	if err != nil {
		return err
	}
	if c.Bool("json") {
		raw, err := json.Marshal(all)
		if err != nil {
			return err
		}
		return printJSON(c.App.Writer, raw)
	}
	w := tabwriter.NewWriter(c.App.Writer, 0, 8, 2, ' ', 0)
	for _, name := range slices.Sorted(maps.Keys(all.Servers)) {
		star := " "
		if name == all.Selected {
			star = "*"
		}
		row(w, star, name, all.Servers[name])
	}
	return w.Flush()
}

func versionCommand() *cli.Command {
	return &cli.Command{Name: "version", Usage: "print the release of this program", Action: func(c *cli.Context) error {
		if c.Bool("json") {
			return printJSON(c.App.Writer, fmt.Appendf(nil, `{"release":%q}`, proc.Release))
		}
		_, err := fmt.Fprintln(c.App.Writer, "narad", proc.Release)
		return err
	}}
}
