// Package proc is what every program does before and around its role: settings
// from file, environment and flags into one set; signals and the stop deadline;
// actors that start and stop together; the memory limit.
//
// Invariants: a setting comes from the flag, else from NARAD_<NAME>, else from
// the --config file, else from its default; an unknown flag or file key refuses
// to start and is named. The first SIGTERM or SIGINT ends the context and starts
// the stop deadline; a second one ends the process at once. The package knows
// no role and no plane. A daemon is a Program, what does one thing and ends is a
// Task; both go through execute. proc_test.go runs one of each and shows it.
package proc

import "github.com/narad-mq/narad/libs/release"

// Release is the version that every program of this source reports.
const Release = release.Name
