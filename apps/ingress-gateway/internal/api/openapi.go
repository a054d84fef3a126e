package api

import _ "embed"

// openapiDocument describes what is built, and only that. openapi_test.go holds
// it against the routes and against every answer that this package's tests see.
//
//go:embed openapi.yaml
var openapiDocument []byte

func (c *call) openapi() error {
	c.resp.Status, c.resp.ContentType = 200, "application/yaml"
	c.out = append(c.out, openapiDocument...)
	return nil
}
