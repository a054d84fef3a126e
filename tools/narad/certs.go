package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/tlsconf/certs"
)

func certsCommand() *cli.Command {
	dir := &cli.StringFlag{Name: "dir", Value: "certs", Usage: "`directory` of the certificates"}
	return &cli.Command{
		Name: "certs", Usage: "make the certificates of a cluster",
		Subcommands: []*cli.Command{
			{
				Name: "init", Usage: "make the CA of a cluster: ca.pem and ca-key.pem",
				Description: "ca.pem goes to every node (--tls-ca). ca-key.pem signs nodes into the cluster: keep it off them.",
				Flags: []cli.Flag{
					dir,
					&cli.StringFlag{Name: "name", Value: "narad", Usage: "`name` of the CA"},
					&cli.DurationFlag{Name: "valid", Value: certs.AuthorityValidity, Usage: "how `long` it is valid"},
				},
				Action: certsInit,
			},
			{
				Name: "node", Usage: "make the certificate of one node: <node-id>.pem and <node-id>-key.pem", ArgsUsage: "<node-id>",
				Description: "Give with --host every name and IP address by which others dial the node: its --advertise, and what --join " +
					"of other nodes says. A node whose certificate lacks its --advertise refuses to start.",
				Flags: []cli.Flag{
					dir,
					&cli.StringSliceFlag{Name: "host", Usage: "`name` or IP address by which it is dialled; several with commas, or again"},
					&cli.DurationFlag{Name: "valid", Value: certs.NodeValidity, Usage: "how `long` it is valid"},
				},
				Action: certsNode,
			},
		},
	}
}

func certsInit(c *cli.Context) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	if c.String("name") == "" || c.Duration("valid") <= 0 {
		return proc.Usagef("--name must not be empty, and --valid must be above zero")
	}
	dir := c.String("dir")
	if _, err := certs.Init(dir, c.String("name"), c.Duration("valid")); err != nil {
		return neverOver(err)
	}
	at := certs.AuthorityPaths(dir)
	fmt.Fprintf(c.App.Writer, "made %s and %s; the key belongs on no node\n", at.Cert, at.Key)
	return nil
}

func certsNode(c *cli.Context) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	id, dir := c.Args().First(), c.String("dir")
	if c.Duration("valid") <= 0 {
		return proc.Usagef("--valid must be above zero")
	}
	if !proc.ValidNodeID(id) {
		return proc.Usagef("%q is no node id", id)
	}
	for _, h := range c.StringSlice("host") {
		if h == "" || strings.ContainsAny(h, "/ ") || strings.Contains(h, ":") && net.ParseIP(h) == nil {
			return proc.Usagef("--host %q: want a host name or an IP address, without a port", h)
		}
	}
	ca, err := certs.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: run `narad certs init` first", err)
	}
	if err != nil {
		return err
	}
	at, err := ca.Node(dir, id, c.StringSlice("host"), c.Duration("valid"))
	if err != nil {
		return neverOver(err)
	}
	fmt.Fprintf(c.App.Writer, "made %s and %s; start the node with --tls-cert %[1]s --tls-key %[2]s --tls-ca %[3]s\n",
		at.Cert, at.Key, certs.AuthorityPaths(dir).Cert)
	return nil
}

// neverOver says what to do about files that are there already.
func neverOver(err error) error {
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%w: nothing is ever written over; move it away first", err)
	}
	return err
}
