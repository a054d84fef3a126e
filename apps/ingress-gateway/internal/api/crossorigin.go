package api

import (
	"bytes"
)

// crossSite tells whether a browser says that another site's page made this
// request: by Sec-Fetch-Site, or by an Origin that is not the Host. Clients that
// are no browsers send neither. Repeated headers are taken for the worst.
func crossSite(h Headers, host []byte) bool {
	site, n := h.Get("Sec-Fetch-Site")
	if n > 1 {
		return true
	}
	if n == 1 && (bytes.EqualFold(site, []byte("cross-site")) || bytes.EqualFold(site, []byte("same-site"))) {
		return true
	}
	origin, n := h.Get("Origin")
	if n == 0 {
		return false
	}
	if n > 1 {
		return true
	}
	_, authority, ok := bytes.Cut(origin, []byte("://"))
	return !ok || !bytes.EqualFold(authority, host) // "null" is another origin too
}
