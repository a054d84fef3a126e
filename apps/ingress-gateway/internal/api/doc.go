// Package api is the client-facing HTTP API as handlers that know no server.
package api
