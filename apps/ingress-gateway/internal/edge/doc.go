// Package edge runs an api.Handler on fasthttp.
package edge
