// Package rpc is the node RPC plane: POST /rpc/v1/<operation> over HTTP, strict
// JSON for control, raw bytes for data, problem+json for refusals.
package rpc
