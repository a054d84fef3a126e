package api

import (
	"bytes"
	"encoding/base64"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/narad-mq/narad/libs/client/batch"
)

const (
	typeJSON = "application/json"
	typeForm = "application/x-www-form-urlencoded" // curl's default: says nothing of the body
	typeText = "text/plain; charset=utf-8"
)

// essence is a media type without parameters and white space around it.
func essence(contentType []byte) []byte {
	if i := bytes.IndexByte(contentType, ';'); i >= 0 {
		contentType = contentType[:i]
	}
	return bytes.TrimSpace(contentType)
}

// isJSONType tells application/json and */*+json, parameters ignored.
func isJSONType(contentType []byte) bool {
	e := essence(contentType)
	if equalFold(e, typeJSON) {
		return true
	}
	const suffix = "+json"
	return len(e) > len(suffix) && equalFold(e[len(e)-len(suffix):], suffix) && bytes.IndexByte(e, '/') > 0
}

// jsonBody tells whether a route that takes JSON takes a body of this type.
func jsonBody(contentType []byte) bool {
	return len(contentType) == 0 || isJSONType(contentType) || equalFold(essence(contentType), typeForm)
}

func equalFold(b []byte, s string) bool {
	return len(b) == len(s) && strings.EqualFold(string(b), s)
}

// acceptsBatch tells whether an Accept header lists the binary format.
func acceptsBatch(accept []byte) bool {
	for more := len(accept) > 0; more; {
		var one []byte
		one, accept, more = bytes.Cut(accept, []byte{','})
		if equalFold(essence(one), batch.ContentType) {
			return true
		}
	}
	return false
}

// appendString appends s, valid UTF-8, as a JSON string.
func appendString[B ~[]byte | ~string](dst []byte, s B) []byte {
	// AppendQuote fails only for invalid UTF-8, and then it has replaced it.
	dst, _ = jsontext.AppendQuote(dst, s)
	return dst
}

func appendBase64(dst, b []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}

// appendTime appends Unix milliseconds as "2026-11-29T20:04:05.123Z", quoted.
func appendTime(dst []byte, ms int64) []byte {
	return time.UnixMilli(ms).UTC().AppendFormat(dst, `"2006-01-02T15:04:05.000Z"`)
}
