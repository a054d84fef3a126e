package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/narad-mq/narad/libs/client/batch"
)

// report is a whole run.
type report struct {
	Phases []result `json:"phases"`
	Floor  float64  `json:"floor_per_second,omitempty"` // the better of the two
}

// measure runs every phase against the cluster; floors (kind to URL) first.
func measure(s settings, floors map[string]string) (*report, error) {
	list, err := programs(s.endpoints)
	if err != nil {
		return nil, err
	}
	r := &report{}
	for _, kind := range []string{floorNetHTTP, floorFastHTTP} {
		url, ok := floors[kind]
		if !ok {
			continue
		}
		b, err := newBench(s)
		if err != nil {
			return nil, err
		}
		b.targets = []target{newTarget(url, s.connections)}
		f := drive("floor: bare "+kind+", group fsync", s.length, b.workers(s.connections, b.single))
		r.Floor = max(r.Floor, f.PerSecond)
		r.Phases = append(r.Phases, f)
	}
	b, err := newBench(s)
	if err != nil {
		return nil, err
	}
	add := func(name string, run func() result) {
		if s.only != "" && !strings.Contains(name, s.only) {
			return
		}
		m := startMeter(list)
		got := run()
		got.Name, got.Programs = name, m.stop(got.Messages)
		if r.Floor > 0 {
			got.ToFloor = got.PerSecond / r.Floor
		}
		r.Phases = append(r.Phases, got)
	}
	if s.replicated {
		return r, b.replicatedPhases(add)
	}
	if err := b.phases(add); err != nil {
		return r, err
	}
	if err := b.fanoutPhases(add); err != nil {
		return r, err
	}
	return r, b.delayPhases(add, list)
}

// phases runs the phases in their order, each kind on a topic of its own.
func (b *bench) phases(add func(string, func() result)) error {
	var peak float64
	n, name := b.connections, b.topic
	groups := []func(){
		func() {
			add("single produce", func() result {
				r := drive("", b.length, b.workers(n, b.single))
				peak = r.PerSecond
				return r
			})
			add("consume and ack, one by one", func() result { return drive("", b.length, b.workers(n, b.consumeOne)) })
			if peak > 0 {
				add("single produce, half of the peak rate", func() result { return b.paced(peak / 2) })
			}
		},
		func() {
			add("produce in batches of 100", func() result { return drive("", b.length, b.workers(n/4, b.produceBatch)) })
			add("consume and ack in batches of 100", func() result { return drive("", b.length, b.workers(n/4, b.consumeBatch)) })
		},
		func() {
			add("end to end, one by one", func() result {
				return b.endToEndPhase("", func(c *call, p []byte) (int, error) {
					return 1, c.expect(202, "POST", b.path("/produce"), "application/octet-stream", p)
				}, endToEnd, endToEnd)
			})
		},
	}
	for i, group := range groups {
		b.topic = name
		if err := b.create(fmt.Sprintf("-%d", i)); err != nil {
			return err
		}
		group()
		if err := b.remove(); err != nil {
			return err
		}
	}
	return nil
}

// handlesOf lists the receipt handles of a binary consume answer.
func handlesOf(answer []byte) ([]string, error) {
	b, err := batch.Decode(answer)
	if err != nil {
		return nil, err
	}
	handles := make([]string, len(b.Records))
	for i := range b.Records {
		handles[i] = string(b.Records[i].ReceiptHandle)
	}
	return handles, nil
}

// firstOf gives the payload and handle of a binary consume answer's record.
func firstOf(answer []byte) (payload []byte, handle string, err error) {
	b, err := batch.Decode(answer)
	if err != nil {
		return nil, "", err
	}
	if len(b.Records) != 1 {
		return nil, "", fmt.Errorf("%d records in an answer to a consume of one", len(b.Records))
	}
	return b.Records[0].Payload, string(b.Records[0].ReceiptHandle), nil
}

func (r *report) print(w io.Writer, jsonFile string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "phase\tmessages/s\tto floor\tp50 ms\tp99 ms\tp99.9 ms\terrors\tCPU s/million (program peak MiB)")
	for _, p := range r.Phases {
		ratio := "-"
		if p.ToFloor > 0 {
			ratio = fmt.Sprintf("%.2f", p.ToFloor)
		}
		var used []string
		all := 0.0
		for _, u := range p.Programs {
			all += u.CPUPerMillion
			used = append(used, fmt.Sprintf("%s %.1f (%.0f)", u.ID, u.CPUPerMillion, u.PeakRSSMegabytes))
		}
		if len(used) > 0 {
			used = append(used, fmt.Sprintf("all %.1f", all))
		}
		fmt.Fprintf(t, "%s\t%.0f\t%s\t%.2f\t%.2f\t%.2f\t%d\t%s\n", p.Name, p.PerSecond, ratio, p.P50, p.P99, p.P999, p.Errors, strings.Join(used, ", "))
		if p.Note != "" {
			fmt.Fprintf(t, "  = %s\n", p.Note)
		}
		if p.FirstError != "" {
			fmt.Fprintf(t, "  ! %s\n", p.FirstError)
		}
	}
	if err := t.Flush(); err != nil || jsonFile == "" {
		return err
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(jsonFile, append(raw, '\n'), 0o600)
}

// readyLimit is how long `narad dev` may take to be ready.
const readyLimit = time.Minute

// devAction starts a cluster of one of each and the floors, and measures them.
func devAction(c *cli.Context) error {
	dir, err := os.MkdirTemp("", "narad-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	floors := map[string]string{}
	for _, kind := range []string{floorNetHTTP, floorFastHTTP} {
		url, stop, err := startFloor(kind, dir)
		if err != nil {
			return err
		}
		defer stop()
		floors[kind] = url
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ready := filepath.Join(dir, "ready")
	cmd := exec.Command(filepath.Join(filepath.Dir(self), "narad"), "dev", "--data-dir", dir, "--ready-file", ready)
	if c.Bool("replicated") {
		cmd.Args = append(cmd.Args, "--storage-nodes", "3")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // what it measured is said already
	}()
	deadline := time.Now().Add(readyLimit)
	for _, err := os.Stat(ready); err != nil; _, err = os.Stat(ready) {
		if time.Now().After(deadline) {
			return fmt.Errorf("narad dev was not ready within %s", readyLimit)
		}
		<-time.After(100 * time.Millisecond)
	}
	s := settingsOf(c)
	s.endpoints = filepath.Join(dir, "run", "endpoints.json")
	r, err := measure(s, floors)
	if err != nil {
		return err
	}
	return r.print(os.Stdout, c.String("json"))
}
