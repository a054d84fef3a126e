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

// write answers with a body of so many bytes in parts. Large parts go to the connection
// as they are: net/http copies only what fits into its small buffers.
func write(w http.ResponseWriter, status int, contentType []string, size int, parts ...[]byte) {
	h := w.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(size)}
	w.WriteHeader(status)
	for _, part := range parts {
		_, _ = w.Write(part) // a caller that is gone hears nothing; there is nobody to tell
	}
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
	write(w, p.Status, typeProblem, len(body), body)
}
