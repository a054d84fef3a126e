package bus

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
)

// maxServers bounds a list of URLs: each is tried in turn.
const maxServers = 16

// Settings say where the bus is; they come from flags.
type Settings struct {
	URL       string // of a NATS server, or several separated by commas; "": there is no bus
	CredsFile string // with a user's JWT and seed, read at each connection; "": none
	CAFile    string // with the authorities that the server's certificate may come from; given, the connection is TLS
}

// Off tells that there is no bus.
func (s Settings) Off() bool { return s.URL == "" }

// Check says what is wrong with the settings. Its errors never repeat a URL: what is
// wrong with one may be that it holds a password.
func (s Settings) Check() error {
	if s.Off() {
		if s.CredsFile != "" || s.CAFile != "" {
			return errors.New("--nats-creds-file and --nats-tls-ca need --nats-url")
		}
		return nil
	}
	list := strings.Split(s.URL, ",")
	if len(list) > maxServers {
		return fmt.Errorf("--nats-url: %d servers, at most %d", len(list), maxServers)
	}
	for _, one := range list {
		if err := checkURL(strings.TrimSpace(one)); err != nil {
			return err
		}
	}
	if s.CredsFile != "" {
		if _, err := os.ReadFile(s.CredsFile); err != nil {
			return fmt.Errorf("--nats-creds-file: %w", err)
		}
	}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return fmt.Errorf("--nats-tls-ca: %w", err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return fmt.Errorf("--nats-tls-ca: no certificate in %s", s.CAFile)
		}
	}
	return nil
}

func checkURL(text string) error {
	if strings.Contains(text, "@") {
		return errors.New("--nats-url: no user and password in it, they would end in logs; use --nats-creds-file")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "nats" && u.Scheme != "tls":
		return errors.New("--nats-url: want nats://host:port or tls://host:port, several separated by commas")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return errors.New("--nats-url: nothing may follow the host and port")
	}
	return nil
}

// options of a connection. Files are read when it is made, so that new ones count.
func (s Settings) options() []nats.Option {
	var out []nats.Option
	if s.CredsFile != "" {
		out = append(out, nats.UserCredentials(s.CredsFile))
	}
	if s.CAFile != "" {
		out = append(out, nats.RootCAs(s.CAFile))
	}
	return out
}
