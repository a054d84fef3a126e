package client

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestChildren(t *testing.T) {
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		asked = append(asked, r.Method+" "+r.URL.EscapedPath()+" "+string(body))
		child := `{"child":"c","delay_ms":5000,"attach_epoch":"a1b2c3d4e5f60718","lag_messages":12,"cursors":[{"partition":1,"node":"s","next_offset":9,"high_watermark":12}]}`
		switch r.Method {
		case http.MethodPost:
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, child)
		case http.MethodGet:
			_, _ = io.WriteString(w, `{"parent":"p","children":[`+child+`]}`)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer srv.Close()
	c, err := New(Config{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := c.AttachChild(t.Context(), "p", "c", 5*time.Second)
	if err != nil || ch.Child != "c" || ch.DelayMS != 5000 {
		t.Errorf("%+v, %v", ch, err)
	}
	list, err := c.Children(t.Context(), "p")
	if err != nil || len(list) != 1 || list[0].LagMessages != 12 || list[0].Cursors[0].NextOffset != 9 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := c.DetachChild(t.Context(), "p", "c"); err != nil {
		t.Error(err)
	}
	want := []string{`POST /v1/topics/p/children {"child":"c","delay_ms":5000}`, "GET /v1/topics/p/children ", "DELETE /v1/topics/p/children/c "}
	for i, w := range want {
		if asked[i] != w {
			t.Errorf("asked %q, want %q", asked[i], w)
		}
	}
	if _, err := c.Children(t.Context(), ""); err == nil {
		t.Error("children of nothing")
	}
}
