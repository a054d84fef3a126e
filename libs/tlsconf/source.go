package tlsconf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// lookEvery is how soon new files are taken: three small reads each time.
	lookEvery = 2 * time.Second
	// failuresBeforeWord: files are replaced one after the other, so that a look
	// in between finds a pair that does not match. Only what stays is worth a word.
	failuresBeforeWord = 2
	// expiryWarning is how long before its end a certificate is worth a word; one
	// that lives shortly is, when less than a part of its life is left.
	expiryWarning = 7 * 24 * time.Hour
	expiryPart    = 4
)

// Config is what a Source is made of.
type Config struct {
	Files Files
	Plane string // "nodes" or "clients", for logs and metrics
	// Host is what others dial to reach this process; its certificate has to name
	// it. "" when nobody dials it, or by names that it cannot know.
	Host     string
	Log      *slog.Logger          // nil discards
	Registry prometheus.Registerer // nil: no metrics
	Now      func() time.Time      // nil: time.Now

	lookEvery time.Duration // tests shorten it
}

// Source is the certificate of one plane, and all that is made with it. Safe for
// concurrent use; nil is a plane without TLS.
type Source struct {
	cfg     Config
	log     *slog.Logger
	current atomic.Pointer[pair]
	unused  atomic.Bool // the files hold something that cannot be used

	// What follows belongs to Run.
	inUse    material
	failures int
	said     string // the last failure logged, so that each is logged once
	warned   *pair  // whose end was logged

	accepted, dialled failureLog
	reloads           prometheus.Counter
}

// Load reads the files and checks them; an error says what is wrong with which.
// No files give a nil Source.
func Load(cfg Config) (*Source, error) {
	if !cfg.Files.Given() {
		return nil, nil
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.lookEvery == 0 {
		cfg.lookEvery = lookEvery
	}
	s := &Source{cfg: cfg, log: cfg.Log.With("plane", cfg.Plane)}
	var err error
	if s.inUse, err = cfg.Files.read(); err != nil {
		return nil, err
	}
	first, err := s.inUse.load(cfg.Host, cfg.Now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Files.Cert, err)
	}
	s.current.Store(first)
	s.warnMode()
	s.log.Info("tls: certificate loaded", s.about(first)...)
	return s, s.register(cfg.Registry)
}

func (s *Source) about(p *pair) []any {
	return []any{"subject", p.leaf.Subject.CommonName, "serial", p.leaf.SerialNumber.Text(16), "not_after", p.leaf.NotAfter.UTC().Format(time.RFC3339)}
}

func (s *Source) warnMode() {
	if s.inUse.groupReadable {
		s.log.Warn("tls: the key file may be used by its group", "file", s.cfg.Files.Key)
	}
}

// Run looks for new files until ctx ends, and then returns nil. Without it the
// pair stays as it was loaded.
func (s *Source) Run(ctx context.Context) error {
	if s == nil {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(s.cfg.lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.look()
			s.warnExpiry()
		case <-ctx.Done():
			return nil
		}
	}
}

// look takes the files into use when they changed and may be used. They are
// compared by content, so that no way of replacing them goes unnoticed.
func (s *Source) look() {
	m, err := s.cfg.Files.read()
	var next *pair
	switch {
	case err == nil && m.equal(s.inUse):
		s.settled()
		return
	case err == nil:
		next, err = m.load(s.cfg.Host, s.cfg.Now)
	}
	if err != nil {
		s.failures++
		if s.failures >= failuresBeforeWord && s.said != err.Error() {
			s.said = err.Error()
			s.unused.Store(true)
			s.log.Error("tls: the new files cannot be used; the certificate in use stays", "file", s.cfg.Files.Cert, "err", err)
		}
		return
	}
	s.settled()
	s.inUse = m
	s.current.Store(next)
	s.reloads.Inc()
	s.warnMode()
	s.log.Info("tls: new certificate in use for new connections", s.about(next)...)
}

// settled: what is on disk is what is in use.
func (s *Source) settled() {
	s.failures, s.said = 0, ""
	s.unused.Store(false)
}

func (s *Source) warnExpiry() {
	p := s.current.Load()
	limit := min(expiryWarning, p.leaf.NotAfter.Sub(p.leaf.NotBefore)/expiryPart)
	if left := p.leaf.NotAfter.Sub(s.cfg.Now()); left < limit && s.warned != p {
		s.warned = p
		s.log.Warn("tls: the certificate ends soon or has ended; replace its files, no restart is needed", s.about(p)...)
	}
}

func (s *Source) register(r prometheus.Registerer) error {
	labels := prometheus.Labels{"plane": s.cfg.Plane}
	counter := func(name, help, side string) prometheus.Counter {
		l := prometheus.Labels{"plane": s.cfg.Plane}
		if side != "" {
			l["side"] = side
		}
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: l})
	}
	const handshakes = "narad_tls_handshake_failures_total"
	s.reloads = counter("narad_tls_reloads_total", "New certificates taken into use since the start.", "")
	s.accepted.count = counter(handshakes, "TLS handshakes that failed.", "accepted")
	s.dialled.count = counter(handshakes, "TLS handshakes that failed.", "dialled")
	if r == nil {
		return nil
	}
	err := errors.Join(
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_tls_cert_expiry_seconds", ConstLabels: labels,
			Help: "Time until the certificate in use ends; negative afterwards.",
		}, func() float64 { return s.current.Load().leaf.NotAfter.Sub(s.cfg.Now()).Seconds() })),
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_tls_files_unusable", ConstLabels: labels,
			Help: "1 while the certificate files hold something that cannot be used and an older certificate is in use.",
		}, func() float64 {
			if s.unused.Load() {
				return 1
			}
			return 0
		})),
		r.Register(s.reloads), r.Register(s.accepted.count), r.Register(s.dialled.count),
	)
	if err != nil {
		return fmt.Errorf("register metrics of tls: %w", err)
	}
	return nil
}
