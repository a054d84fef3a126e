package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/narad-mq/narad/libs/proc"
)

// cronJob is what this test reads of the manifest; what it does not name may be anything.
type cronJob struct {
	Kind string
	Spec struct {
		Schedule          string
		ConcurrencyPolicy string `yaml:"concurrencyPolicy"`
		JobTemplate       struct {
			Spec struct {
				BackoffLimit          *int `yaml:"backoffLimit"`
				ActiveDeadlineSeconds int  `yaml:"activeDeadlineSeconds"`
				Template              struct{ Spec pod }
			}
		} `yaml:"jobTemplate"`
	}
}

type pod struct {
	RestartPolicy                string `yaml:"restartPolicy"`
	AutomountServiceAccountToken *bool  `yaml:"automountServiceAccountToken"`
	SecurityContext              struct {
		RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
		RunAsUser      int                   `yaml:"runAsUser"`
		SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Containers []container
}

type container struct {
	Args            []string
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
	Resources struct{ Requests, Limits map[string]string }
}

// TestCronJob: the manifest runs this program with flags that it has, one at a time,
// with no right that it does not need, and long enough that there is a report.
func TestCronJob(t *testing.T) {
	raw, err := os.ReadFile("../../deploy/kubernetes/purge-sweeper-cronjob.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var job cronJob
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&job); err != nil {
		t.Fatal(err)
	}
	spec := job.Spec.JobTemplate.Spec
	p := spec.Template.Spec
	if job.Kind != "CronJob" || len(strings.Fields(job.Spec.Schedule)) != 5 || job.Spec.ConcurrencyPolicy != "Forbid" ||
		spec.BackoffLimit == nil || *spec.BackoffLimit != 0 || p.RestartPolicy != "Never" || len(p.Containers) != 1 {
		t.Fatalf("%+v", job)
	}
	c := p.Containers[0]
	if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken || !p.SecurityContext.RunAsNonRoot ||
		p.SecurityContext.RunAsUser != 65532 || p.SecurityContext.SeccompProfile.Type != "RuntimeDefault" ||
		c.SecurityContext.AllowPrivilegeEscalation == nil || *c.SecurityContext.AllowPrivilegeEscalation ||
		!c.SecurityContext.ReadOnlyRootFilesystem || !slices.Equal(c.SecurityContext.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("more rights than it needs: %+v", p)
	}
	if c.Resources.Requests["cpu"] == "" || c.Resources.Requests["memory"] == "" || c.Resources.Limits["memory"] == "" {
		t.Errorf("resources %+v", c.Resources)
	}
	var known []string
	for _, f := range append(proc.TaskFlags(), task().Flags...) {
		known = append(known, f.Names()...)
	}
	given := map[string]string{}
	for _, arg := range c.Args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !strings.HasPrefix(arg, "--") || !slices.Contains(known, name) {
			t.Errorf("%q is no flag of this program", arg)
		}
		given[name] = value
	}
	timeout, err := time.ParseDuration(given["timeout"])
	if err != nil || time.Duration(spec.ActiveDeadlineSeconds)*time.Second <= timeout {
		t.Errorf("the job ends after %d s, the pass after %s: %v", spec.ActiveDeadlineSeconds, timeout, err)
	}
	for _, need := range []string{"join", "tls-cert", "tls-key", "tls-ca"} {
		if given[need] == "" {
			t.Errorf("--%s is not set", need)
		}
	}
	if _, ok := given["yes"]; ok {
		t.Error("--yes without an operator")
	}
}
