package ops

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

func get(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + s.Addr().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestPortAnswersBeforeTheRoleDoes(t *testing.T) {
	s, err := Start("127.0.0.1:0", Identity{"n1", "storage-node", "0.1.0"}, NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if status, body := get(t, s, "/healthz"); status != 200 || body != "{\"status\":\"ok\"}\n" {
		t.Errorf("/healthz = %d %s", status, body)
	}
	status, body := get(t, s, "/readyz")
	var doc readiness
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	if status != 503 || doc.Status != "not_ready" || len(doc.Reasons) != 1 || doc.Reasons[0].Code != ReasonStarting || doc.NodeID != "n1" {
		t.Errorf("/readyz = %d %s", status, body)
	}
	if status, body := get(t, s, "/metrics"); status != 200 || !strings.Contains(body, "go_goroutines") {
		t.Errorf("/metrics = %d", status)
	}
	if status, _ := get(t, s, "/quorum"); status != 503 {
		t.Errorf("/quorum = %d before the role is there, want 503", status)
	}
	if status, _ := get(t, s, "/readyz/accept"); status != 503 {
		t.Errorf("/readyz/accept = %d before the role is there, want 503", status)
	}
}

func TestPortShowsTheSource(t *testing.T) {
	s, err := Start("127.0.0.1:0", Identity{}, NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	notReady := []Reason{{ReasonNoLeader, "none in view"}}
	s.SetSource(&Source{
		Ready:  func() (reasons, degraded []Reason) { return notReady, []Reason{{"wal_damage", "1 frame"}} },
		Accept: func() []Reason { return nil },
		Quorum: func() (any, error) { return map[string]int{"majority": 2}, nil },
	})
	if status, body := get(t, s, "/readyz"); status != 503 || !strings.Contains(body, ReasonNoLeader) || !strings.Contains(body, "wal_damage") {
		t.Errorf("/readyz = %d %s", status, body)
	}
	if status, body := get(t, s, "/readyz/accept"); status != 200 || !strings.Contains(body, `"reasons":[]`) {
		t.Errorf("/readyz/accept = %d %s", status, body)
	}
	if status, body := get(t, s, "/quorum"); status != 200 || body != "{\"majority\":2}\n" {
		t.Errorf("/quorum = %d %s", status, body)
	}
	notReady = nil
	if status, _ := get(t, s, "/readyz"); status != 200 {
		t.Errorf("/readyz = %d after the reasons went, want 200", status)
	}
	if status, _ := get(t, s, "/metrics/topics"); status != 404 {
		t.Errorf("/metrics/topics = %d without a source, want 404", status)
	}
	s.SetSource(&Source{Ready: func() (reasons, degraded []Reason) { return nil, nil }})
	if status, body := get(t, s, "/quorum"); status != 404 {
		t.Errorf("/quorum = %d %s of a role that has none, want 404", status, body)
	}
}

func TestProfilesOnlyWhenAsked(t *testing.T) {
	for _, on := range []bool{false, true} {
		s, err := Start("127.0.0.1:0", Identity{}, NewRegistry(), WithProfiles(on))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, path := range []string{"/debug/pprof/heap", "/debug/pprof/profile?seconds=1"} {
			if status, _ := get(t, s, path); (status == 200) != on {
				t.Errorf("%s = %d with profiles %t", path, status, on)
			}
		}
	}
}
