package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"
	"gopkg.in/yaml.v3"

	"github.com/narad-mq/narad/apps/ingress-gateway/gateway"
	"github.com/narad-mq/narad/libs/proc"
)

// manifest is what this test reads of the Deployment; what it does not name may be anything.
type manifest struct {
	Kind string
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     pod
		}
	}
}

type pod struct {
	AutomountServiceAccountToken  *bool `yaml:"automountServiceAccountToken"`
	TerminationGracePeriodSeconds int   `yaml:"terminationGracePeriodSeconds"`
	SecurityContext               struct {
		RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
		RunAsUser      int                   `yaml:"runAsUser"`
		SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	InitContainers []container `yaml:"initContainers"`
	Containers     []container
	Volumes        []map[string]any
}

type container struct {
	Args            []string
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
	Resources      struct{ Requests, Limits map[string]string }
	ReadinessProbe struct {
		HTTPGet struct{ Path string } `yaml:"httpGet"`
	} `yaml:"readinessProbe"`
}

// TestDeploymentWithoutALog: the manifest runs this program with settings that it takes,
// keeps nothing that outlives a pod, and has no right that it does not need.
func TestDeploymentWithoutALog(t *testing.T) {
	raw, err := os.ReadFile("../../deploy/kubernetes/ingress-gateway-nowal-deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d manifest
	kinds := []string{}
	for dec := yaml.NewDecoder(bytes.NewReader(raw)); ; {
		var m manifest
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil && m.Kind == "Deployment" {
			t.Fatal(err)
		}
		kinds = append(kinds, m.Kind)
		if m.Kind == "Deployment" {
			d = m
		}
	}
	p := d.Spec.Template.Spec
	if !slices.Equal(kinds, []string{"Service", "Service", "Deployment"}) || len(p.Containers) != 1 || len(p.InitContainers) != 1 {
		t.Fatalf("%v, %+v", kinds, p)
	}
	for k, v := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Metadata.Labels[k] != v {
			t.Errorf("the pods do not have the label %s=%s", k, v)
		}
	}
	if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken || !p.SecurityContext.RunAsNonRoot ||
		p.SecurityContext.RunAsUser != 65532 || p.SecurityContext.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("more rights than it needs: %+v", p)
	}
	for _, c := range slices.Concat(p.Containers, p.InitContainers) {
		s := c.SecurityContext
		if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("more rights than it needs: %+v", c)
		}
		if c.Resources.Requests["cpu"] == "" || c.Resources.Requests["memory"] == "" || c.Resources.Limits["memory"] == "" {
			t.Errorf("resources %+v", c.Resources)
		}
	}
	for _, v := range p.Volumes {
		if v["emptyDir"] == nil && v["secret"] == nil {
			t.Errorf("a volume that is kept: %v", v)
		}
	}
	if probe := p.Containers[0].ReadinessProbe.HTTPGet.Path; probe != "/readyz/accept" {
		t.Errorf("ready by %q", probe)
	}
	checkArgs(t, p.Containers[0].Args, time.Duration(p.TerminationGracePeriodSeconds)*time.Second)
}

// checkArgs lets the program itself judge its arguments.
func checkArgs(t *testing.T, args []string, grace time.Duration) {
	t.Helper()
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, "--config=") }) // is written in the pod
	ran := false
	app := &cli.App{Name: "ingress-gateway", Flags: append(proc.CommonFlags(), gateway.Flags()...), Action: func(c *cli.Context) error {
		ran = true
		cfg, err := gateway.Configure(proc.Common{Join: strings.Split(c.String("join"), ",")}, c)
		if err != nil {
			return err
		}
		if !cfg.NoWAL || !strings.HasPrefix(c.String("data-dir"), "/data/") || c.Bool("insecure") {
			t.Errorf("%+v in %q", cfg, c.String("data-dir"))
		}
		if stop := gateway.StopDeadline(c); grace < stop {
			t.Errorf("killed after %s, while a stop may take %s", grace, stop)
		}
		return nil
	}}
	if err := app.Run(append([]string{"ingress-gateway"}, args...)); err != nil || !ran {
		t.Errorf("%v: %v", args, err)
	}
}
