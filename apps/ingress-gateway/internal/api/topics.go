package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// creation is the document of a topic to create.
type creation struct {
	name, parent string
	named, sized bool
	cfg          topic.Config
	delayMS      int64
	later        string // a feature that it asks for and that is not built
}

// field reads one field of the document.
func (n *creation) field(r *jsonReader, i int, name string) error {
	switch i {
	case topicName, topicParent:
		b, err := r.str(name, nil)
		if i == topicName {
			n.name, n.named = string(b), true
		} else {
			n.parent = string(b)
		}
		return err
	case topicDelay:
		var err error
		n.delayMS, err = r.integer(name)
		return err
	}
	n.sized = n.sized || i == topicPartitions
	feature, err := readSetting(r, i, name, &n.cfg)
	if n.later == "" {
		n.later = feature
	}
	return err
}

// check refuses what cannot be, whatever the metastore says.
func (n *creation) check() error {
	switch {
	case !n.named:
		return badParameter("name", "a topic needs a name")
	case topic.ValidateName(n.name) != nil:
		return problem.New(problem.InvalidTopicName, "%s", topic.ValidateName(n.name).Error())
	case n.parent != "" && topic.ValidateName(n.parent) != nil:
		return problem.New(problem.InvalidTopicName, "parent: %s", topic.ValidateName(n.parent).Error())
	case n.parent == "" && n.delayMS != 0:
		return badParameter("delay_ms", "delay_ms is of a child: name its parent")
	}
	if err := checkDelay(n.delayMS); err != nil {
		return err
	}
	return checkConfig(n.cfg, n.later)
}

// createTopic: POST /v1/topics.
func (c *call) createTopic() error {
	r, err := c.jsonDocument(MaxJSONBytes)
	if err != nil {
		return err
	}
	names, n := topicFields(), creation{cfg: topic.DefaultConfig()}
	if err := r.object("body", names, 0, func(i int) error { return n.field(r, i, names[i]) }); err != nil {
		return err
	}
	if err := r.end(); err != nil {
		return err
	}
	if err := n.check(); err != nil {
		return err
	}
	ctx, cancel := c.within(metadataBudget)
	defer cancel()
	t, err := c.create(ctx, &n)
	if err != nil {
		return c.existing(ctx, n.name, err)
	}
	c.json(201)
	c.resp.Location = "/v1/topics/" + t.Name
	c.resp.ETag = etag(t)
	c.out = append(appendTopic(c.out, t), '}')
	return nil
}

func (c *call) create(ctx context.Context, n *creation) (*topic.Topic, error) {
	if n.parent == "" {
		return c.api.deps.Topics.Create(ctx, n.name, n.cfg)
	}
	parent, err := c.api.deps.Topics.Resolve(ctx, n.parent)
	if err != nil {
		return nil, err
	}
	if n.sized && n.cfg.Partitions != parent.Partitions {
		return nil, badParameter("partitions", "a child is created with as many partitions as its parent, which has %d", parent.Partitions)
	}
	return c.api.deps.Children.CreateChild(ctx, n.name, n.cfg, parent, n.delayMS)
}

// existing makes topic_exists carry the existing topic as this API shows it.
func (c *call) existing(ctx context.Context, name string, err error) error {
	var p *problem.Problem
	if !errors.As(err, &p) || p.Code != problem.TopicExists {
		return err
	}
	t := topicMember(p.Members["topic"])
	if t == nil {
		if t, _ = c.api.deps.Topics.Resolve(ctx, name); t == nil {
			return p // it has gone meanwhile, or its name differs in case
		}
	}
	return problem.New(problem.TopicExists, "%q exists", t.Name).With("topic", json.RawMessage(append(appendTopic(nil, t), '}')))
}

// topicMember reads the member that the metastore's refusal carries; over the
// wire it has become generic JSON.
func topicMember(v any) *topic.Topic {
	switch v := v.(type) {
	case *topic.Topic:
		return v
	case topic.Topic:
		return &v
	case nil:
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	var t topic.Topic
	if json.Unmarshal(b, &t) != nil || t.Name == "" {
		return nil
	}
	return &t
}

// patchTopic: PATCH /v1/topics/{topic}.
func (c *call) patchTopic() error {
	match, err := c.ifMatch()
	if err != nil {
		return err
	}
	r, err := c.jsonDocument(MaxJSONBytes)
	if err != nil {
		return err
	}
	// The document is read against the record that it changes; a record that
	// another change replaced meanwhile is read again, unless If-Match fixed it.
	for attempt := 1; ; attempt++ {
		t, err := c.resolve()
		if err != nil {
			return err
		}
		if err := match.check(t); err != nil {
			return err
		}
		cfg, err := readPatch(r, t)
		if err != nil {
			return err
		}
		ctx, cancel := c.within(metadataBudget)
		changed, err := c.api.deps.Topics.Update(ctx, t, cfg)
		cancel()
		if err == nil {
			c.json(200)
			c.resp.ETag = etag(changed)
			c.out = append(appendTopic(c.out, changed), '}')
			return nil
		}
		if match.given || attempt == updateAttempts || !problem.HasCode(err, problem.PreconditionFailed) {
			return err
		}
		if err := r.read(c.raw); err != nil {
			return err
		}
	}
}

// readPatch applies the document to the topic's settings: all fields or none.
func readPatch(r *jsonReader, t *topic.Topic) (topic.Config, error) {
	names := append(topicFields(), readOnlyFields()...)
	cfg, later, count := t.Config, "", 0
	err := r.object("body", names, 1<<topicDeadLetter|1<<topicSchema, func(i int) error {
		switch {
		case i == topicName, i == topicReplication, i == topicParent, i == topicDelay, i > topicSchema:
			return problem.New(problem.ImmutableField, "%s cannot be changed", names[i]).With("parameter", names[i])
		}
		count++
		feature, err := readSetting(r, i, names[i], &cfg)
		if later == "" {
			later = feature
		}
		return err
	})
	if err != nil {
		return cfg, err
	}
	if err := r.end(); err != nil {
		return cfg, err
	}
	if count == 0 {
		return cfg, badParameter("body", "a change names at least one field")
	}
	if cfg.Partitions < t.Partitions {
		return cfg, badParameter("partitions", "the number of partitions only grows")
	}
	return cfg, checkConfig(cfg, later)
}

// deleteTopic: DELETE /v1/topics/{topic}.
func (c *call) deleteTopic() error {
	match, err := c.ifMatch()
	if err != nil {
		return err
	}
	t, err := c.resolve()
	if err != nil {
		return err
	}
	version := uint64(0)
	if match.given {
		version = match.version
		// A newer version than this replica's may be right: the leader compares.
		if !(match.incarnation == t.Incarnation && match.version > t.Version) {
			if err := match.check(t); err != nil {
				return err
			}
		}
	}
	ctx, cancel := c.within(metadataBudget)
	defer cancel()
	if err := c.api.deps.Topics.Delete(ctx, t, version); err != nil {
		return err
	}
	c.resp.Status = 204
	return nil
}

// listTopics: GET /v1/topics.
func (c *call) listTopics() error {
	limit, err := c.query.integer("limit", DefaultListLimit, 1, MaxListLimit)
	if err != nil {
		return err
	}
	prefix, _, err := c.query.text("prefix", nil)
	if err != nil {
		return err
	}
	after, err := c.pageToken()
	if err != nil {
		return err
	}
	list, err := c.api.deps.Topics.List(string(prefix), after, int(limit)+1) // one more tells whether a page follows
	if err != nil {
		return err
	}
	more := len(list) > int(limit)
	if more {
		list = list[:limit]
	}
	c.json(200)
	c.out = append(c.out, `{"topics":[`...)
	for i, t := range list {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = append(appendTopic(c.out, t), '}')
	}
	c.out = append(c.out, `],"next_page_token":`...)
	if more {
		c.out = append(c.out, '"')
		c.out = base64.RawURLEncoding.AppendEncode(c.out, []byte(list[limit-1].Name))
		c.out = append(c.out, `"}`...)
	} else {
		c.out = append(c.out, `null}`...)
	}
	return nil
}

// pageToken is the last name of the page before, in base64url.
func (c *call) pageToken() (string, error) {
	token, ok, err := c.query.text("page_token", nil)
	if err != nil || !ok || len(token) == 0 {
		return "", err
	}
	name, err := base64.RawURLEncoding.Strict().DecodeString(string(token))
	if err != nil || topic.ValidateName(string(name)) != nil {
		return "", badParameter("page_token", "page_token is not one that an answer gave")
	}
	return string(name), nil
}
