package edge

import (
	"fmt"
	"strings"
	"testing"
)

func TestKeepAliveAndPipelining(t *testing.T) {
	p := newRig(t, Config{}).dial()
	for range 3 {
		p.send("%sContent-Length: 1\r\n\r\nx", head).want(202, "")
	}
	one := head + "Content-Length: 1\r\n\r\nx"
	p.send("%s", one+fmt.Sprintf(consume, "0s")+one+head+"Content-Length: 0\r\n\r\n"+fmt.Sprintf(consume, "0s"))
	p.want(202, "")
	p.want(200, "")
	p.want(202, "")
	p.want(400, "empty_message")
	p.want(200, "")
	// A refused body that is short is read, and the connection goes on.
	p.send("POST /v1/topics/nobody/produce HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\n\r\nhello").want(404, "topic_not_found")
	p.send("%sTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", head).want(202, "")
	p.send("%sContent-Length: 1\r\nConnection: close\r\n\r\nx", head).want(202, "")
	p.ended()
}

func TestTargetsAsTheyStand(t *testing.T) {
	p := newRig(t, Config{}).dial()
	for target, want := range map[string]int{
		"//v1/topics": 404, "/v1//topics": 404, "/v1/topics/../info": 404, "/v1/./info": 404, "/v1/info/": 404, "/V1/info": 404,
		"/v1/%69nfo": 404, "http://gateway/v1/info": 404, "/v1/info#a": 404, "/v1/topics/a%2fb": 400, "/v1/topics/%6frders": 200,
		"/v1/topics/..%2forders": 400, "/v1/topics/orders%00": 400, `/v1/topics/a\b`: 400, "/v1/topics/%c0%ae": 400, "/v1/info?": 200, "/v1/info?a": 400,
	} {
		p.send("GET %s HTTP/1.1\r\nHost: gateway\r\n\r\n", target)
		if a := p.read("GET"); a.StatusCode != want || a.Header.Get("Location") != "" {
			t.Errorf("%s: %d %s", target, a.StatusCode, a.body)
		}
	}
}

func TestMethods(t *testing.T) {
	p := newRig(t, Config{}).dial()
	p.send("HEAD /v1/topics/orders/consume HTTP/1.1\r\nHost: gateway\r\n\r\n")
	if a := p.read("HEAD"); a.StatusCode != 405 || a.Header.Get("Allow") != "GET, POST" || a.body != "" {
		t.Errorf("HEAD: %d %v", a.StatusCode, a.Header)
	}
	p.send("OPTIONS /v1/info HTTP/1.1\r\nHost: gateway\r\n\r\n").want(405, "method_not_allowed")
	p.send("OPTIONS * HTTP/1.1\r\nHost: gateway\r\n\r\n").want(404, "route_not_found")
	p.send("GET /v1/info HTTP/1.0\r\n\r\n").want(200, "")
	p.ended()
}

func TestMalformedRequests(t *testing.T) {
	r := newRig(t, Config{})
	long := strings.Repeat("x", 9<<10)
	for name, c := range map[string]struct {
		request string
		status  int
		code    string
	}{
		"no host":          {"GET /v1/info HTTP/1.1\r\n\r\n", 400, "invalid_request"},
		"no HTTP":          {"hello\r\n\r\n", 400, "invalid_request"},
		"no version":       {"GET /v1/info HTTP/9\r\nHost: g\r\n\r\n", 400, "invalid_request"},
		"two lengths":      {head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400, "invalid_request"},
		"two types":        {head + "Content-Type: text/plain\r\ncontent-type: text/html\r\nContent-Length: 1\r\n\r\nx", 400, "invalid_request"},
		"space in a name":  {head + "Content-Length : 1\r\n\r\nx", 400, "invalid_request"},
		"other coding":     {head + "Transfer-Encoding: gzip\r\n\r\nx", 400, "invalid_request"},
		"broken chunk":     {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "invalid_request"},
		"long line":        {"GET /v1/info?" + long + " HTTP/1.1\r\nHost: g\r\n\r\n", 414, "uri_too_long"},
		"endless line":     {"GET /v1/info?" + strings.Repeat(long, 6), 414, "uri_too_long"},
		"long headers":     {head + strings.Repeat("X-A: "+long+"\r\n", 4) + "\r\n", 431, "headers_too_large"},
		"endless headers":  {head + strings.Repeat("X-A: "+long+"\r\n", 6), 431, "headers_too_large"},
		"expects the moon": {head + "Expect: moon\r\nContent-Length: 1\r\n\r\nx", 417, "expectation_failed"},
		"other site":       {head + "Sec-Fetch-Site: cross-site\r\nContent-Length: 1\r\n\r\nx", 403, "cross_origin"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.dial()
			p.TB = t
			p.send("%s", c.request).want(c.status, c.code)
		})
	}
	if len(r.broker.Messages("orders", 0)) != 0 {
		t.Error("a malformed request was accepted")
	}
}

func TestExpectContinue(t *testing.T) {
	r := newRig(t, Config{})
	t.Run("wait for 100", func(t *testing.T) {
		p := r.dial()
		p.send("%sExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", head)
		line, err := p.r.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := p.r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		p.send("hello").want(202, "")
		p.send("%sContent-Length: 1\r\n\r\nx", head).want(202, "")
	})
	t.Run("send at once", func(t *testing.T) {
		p := r.dial()
		p.send("%sExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello", head)
		if a := p.read("POST"); a.StatusCode != 100 {
			t.Fatalf("%d", a.StatusCode)
		}
		p.want(202, "")
	})
	t.Run("never send", func(t *testing.T) {
		p := newRig(t, Config{BodyTimeout: short}).dial()
		p.send("%sExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", head)
		if a := p.read("POST"); a.StatusCode != 100 {
			t.Fatalf("%d", a.StatusCode)
		}
		p.want(408, "request_timeout")
		p.ended()
	})
	for name, c := range map[string]struct {
		request string
		status  int
		code    string
	}{
		"too long":      {head + "Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n", 413, "message_too_large"},
		"unknown topic": {"POST /v1/topics/nobody/produce HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 404, "topic_not_found"},
		"bad parameter": {"POST /v1/topics/orders/produce?a= HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 400, "invalid_request"},
		"sent anyway":   {"POST /v1/topics/nobody/produce HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello", 404, "topic_not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.dial()
			p.TB = t
			if a := p.send("%s", c.request).want(c.status, c.code); !a.Close {
				t.Error("the connection is kept")
			}
			p.ended()
		})
	}
	if n := len(r.broker.Messages("orders", 0)); n != 3 {
		t.Errorf("%d messages were accepted, want 3", n)
	}
}
