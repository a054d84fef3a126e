package rpc

import (
	"log/slog"
	"net/http"
	"strconv"

	"github.com/narad-mq/narad/libs/problem"
)

// Header values are shared: net/http reads them only.
var (
	typeJSON    = []string{"application/json"}
	typeBinary  = []string{"application/octet-stream"}
	typeProblem = []string{problem.ContentType}
)

func write(w http.ResponseWriter, status int, contentType []string, body []byte) {
	h := w.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a caller that is gone hears nothing; there is nobody to tell
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, p *problem.Problem) {
	if p.Code == problem.MethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	body, err := p.MarshalJSON()
	if err != nil {
		s.cfg.Log.LogAttrs(r.Context(), slog.LevelError, "rpc refusal cannot be written",
			slog.String("code", string(p.Code)), slog.String("error", err.Error()))
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	write(w, p.Status, typeProblem, body)
}
