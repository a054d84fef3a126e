package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// clockTicks is USER_HZ, which Linux fixes at 100 for programs.
const clockTicks = 100

// usages is what one program used during a phase.
type usages struct {
	ID               string  `json:"id"`
	CPUSeconds       float64 `json:"cpu_seconds"`
	CPUPerMillion    float64 `json:"cpu_seconds_per_million"`
	PeakRSSMegabytes float64 `json:"peak_rss_mib"`
}

type program struct {
	ID  string `json:"id"`
	PID int    `json:"pid"`
}

// programs reads endpoints.json; no file, no figures.
func programs(file string) ([]program, error) {
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var list []program
	return list, json.Unmarshal(raw, &list)
}

// cpuSeconds is a process's user and system time so far.
func cpuSeconds(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	user, err := strconv.ParseFloat(fields[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(fields[12], 64)
	return (user + system) / clockTicks, err
}

// peakRSS is a process's largest resident size in MiB, rss what it is now.
func peakRSS(pid int) float64 { return statusMiB(pid, "VmHWM:") }
func rss(pid int) float64     { return statusMiB(pid, "VmRSS:") }

// statusMiB reads a size from /proc/PID/status; 0 when it cannot be read.
func statusMiB(pid int, name string) float64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024
		}
	}
	return 0
}

// meter measures what the programs use while something runs.
type meter struct {
	list   []program
	before map[int]float64
}

func startMeter(list []program) meter {
	m := meter{list, map[int]float64{}}
	for _, p := range list {
		m.before[p.PID], _ = cpuSeconds(p.PID)
	}
	return m
}

func (m meter) stop(messages int64) []usages {
	var out []usages
	for _, p := range m.list {
		after, err := cpuSeconds(p.PID)
		if err != nil {
			continue // it was restarted meanwhile
		}
		u := usages{ID: p.ID, CPUSeconds: after - m.before[p.PID], PeakRSSMegabytes: peakRSS(p.PID)}
		if messages > 0 {
			u.CPUPerMillion = u.CPUSeconds / float64(messages) * 1e6
		}
		out = append(out, u)
	}
	return out
}
