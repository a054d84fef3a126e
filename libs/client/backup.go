package client

import (
	"context"
	"io"
	"net/http"
)

// Backup writes a backup of the cluster's metadata to w, as the first gateway that
// can give one streams it, and returns its length in bytes. It has no messages.
// When it fails w may have a part of one: only what was written without an error,
// and whose checksum is right, is a backup. ctx alone bounds it.
func (c *Client) Backup(ctx context.Context, w io.Writer) (int64, error) {
	call := Call{Op: "back up the metadata", Method: http.MethodGet, Path: "/v1/cluster/backup", Safety: RepeatFreely}
	start := c.current.Load()
	for n := 1; ; n++ {
		base := c.bases[(start+uint32(n-1))%uint32(len(c.bases))]
		written, e := c.stream(ctx, base, call, w)
		if e == nil {
			return written, nil
		}
		e.Op, e.Gateway, e.Attempts = call.Op, base, n
		if written > 0 || n == len(c.bases) || ctx.Err() != nil || !mayRetry(e, call.Safety) {
			return written, e
		}
	}
}

// stream makes one attempt, and copies the answer as it comes.
func (c *Client) stream(ctx context.Context, base string, call Call, w io.Writer) (int64, *Error) {
	req, err := c.request(ctx, base, call)
	if err != nil {
		return 0, &Error{Err: err, final: true}
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, &Error{Err: transportCause(err)}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		body, _ := readAll(res.Body, -1, maxProblemBytes) // cut or endless: the status alone must do
		return 0, problemError(res.StatusCode, res.Header, body, false)
	}
	written, err := io.Copy(w, res.Body)
	if err != nil {
		return written, &Error{Status: res.StatusCode, RequestID: res.Header.Get("Narad-Request-Id"), Detail: "the backup was cut", Err: err, final: true}
	}
	return written, nil
}
