package client

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestBackupStreams: the first gateway that has one, and never the halves of two.
func TestBackupStreams(t *testing.T) {
	serve := func(h http.HandlerFunc) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	refusing := serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"status":503,"code":"not_ready","detail":"x","request_id":"r1"}`))
	})
	whole := serve(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/v1/cluster/backup" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		_, _ = w.Write([]byte("all of it"))
	})
	cut := serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("half"))
	})
	for name, c := range map[string]struct {
		urls []string
		want string
		code Code
		fail bool
	}{
		"the second has it":  {[]string{refusing, whole}, "all of it", "", false},
		"nobody has it":      {[]string{refusing, refusing}, "", CodeNotReady, true},
		"the first is cut":   {[]string{cut, whole}, "half", "", true},
		"the first is there": {[]string{whole, cut}, "all of it", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			cl, err := New(Config{URLs: c.urls})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			var b bytes.Buffer
			n, err := cl.Backup(t.Context(), &b)
			if b.String() != c.want || n != int64(b.Len()) || (err != nil) != c.fail {
				t.Errorf("%q, %d, %v", b.String(), n, err)
			}
			var e *Error
			if c.fail && (!errors.As(err, &e) || e.Code != c.code) {
				t.Errorf("error %v", err)
			}
		})
	}
}
