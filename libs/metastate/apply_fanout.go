package metastate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// AttachmentByEpoch returns one attachment, or nil when it has ended or never was.
func AttachmentByEpoch(r Reader, epoch topic.ID64) (*topic.Attachment, error) {
	return get[topic.Attachment](r, BucketAttachments, incarnationKey(epoch))
}

// CheckAttach tells whether an attachment could be applied now: a Result with the
// refusal, or none. The entry judges again.
func CheckAttach(r Reader, at *topic.Attachment) (Result, error) {
	_, _, refused, err := attachable(r, at)
	return refused, err
}

// CheckParent is CheckAttach for a child that is to be created.
func CheckParent(r Reader, at *topic.Attachment) (Result, error) {
	_, refused, err := parentOf(r, at)
	return refused, err
}

func applyAttach(tx Tx, e *AttachChild) (Result, error) {
	parent, child, refused, err := attachable(tx, &e.Attachment)
	if err != nil || refused.Refusal != nil {
		return refused, err
	}
	return attach(tx, parent, child, &e.Attachment)
}

// applyCreateChild checks the attachment before it creates, so that a refusal
// leaves nothing.
func applyCreateChild(tx Tx, e *CreateChild) (Result, error) {
	at := &e.Attach.Attachment
	if at.Name != e.Create.Topic.Name || at.Incarnation != e.Create.Topic.Incarnation {
		return refuse(problem.InvalidRequest, "the attachment is of another topic"), nil
	}
	e.Create.Topic.Children, e.Create.Topic.Parent = nil, nil
	parent, refused, err := parentOf(tx, at)
	if err != nil || refused.Refusal != nil {
		return refused, err
	}
	res, err := applyCreate(tx, &e.Create)
	if err != nil || res.Refusal != nil {
		return res, err
	}
	return attach(tx, parent, res.Topic, at)
}

// attachable finds both lives and tells whether they can be linked.
func attachable(tx Reader, at *topic.Attachment) (parent, child *topic.Topic, refused Result, err error) {
	parent, refused, err = parentOf(tx, at)
	if err != nil || refused.Refusal != nil {
		return nil, nil, refused, err
	}
	child, err = TopicByName(tx, at.Name)
	switch {
	case err != nil:
		return nil, nil, Result{}, err
	case child == nil:
		return nil, nil, refuse(problem.TopicNotFound, fmt.Sprintf("there is no topic %q", at.Name)), nil
	case child.Incarnation != at.Incarnation:
		return nil, nil, refuse(problem.TopicChanged, "the child's name belongs to another incarnation").with("incarnation", child.Incarnation), nil
	case child.Name == parent.Name:
		return nil, nil, refuse(problem.RoleConflict, "a topic cannot be its own child"), nil
	case child.Parent != nil:
		return nil, nil, refuse(problem.AlreadyAttached, fmt.Sprintf("%q is a child of %q already", child.Name, child.Parent.Name)), nil
	case len(child.Children) > 0:
		return nil, nil, refuse(problem.RoleConflict, fmt.Sprintf("%q has children itself", child.Name)), nil
	}
	return parent, child, Result{}, nil
}

// parentOf finds the parent and tells whether it can have that child.
func parentOf(tx Reader, at *topic.Attachment) (*topic.Topic, Result, error) {
	parent, err := TopicByName(tx, at.Parent)
	switch {
	case err != nil:
		return nil, Result{}, err
	case parent == nil:
		return nil, refuse(problem.TopicNotFound, fmt.Sprintf("there is no topic %q", at.Parent)), nil
	case parent.Incarnation != at.ParentIncarnation:
		return nil, refuse(problem.TopicChanged, "the parent's name belongs to another incarnation").with("incarnation", parent.Incarnation), nil
	case parent.Parent != nil:
		return nil, refuse(problem.RoleConflict, fmt.Sprintf("%q is a child itself", parent.Name)), nil
	case len(parent.Children) >= topic.MaxChildren:
		return nil, refuse(problem.TooManyChildren, fmt.Sprintf("%q has %d children", parent.Name, len(parent.Children))), nil
	case at.DelayMS < 0 || at.DelayMS > topic.MaxDelayMS:
		return nil, refuse(problem.InvalidRequest, "the delay is out of range"), nil
	case len(at.Points) > parent.Partitions || slices.ContainsFunc(at.Points, func(p int64) bool { return p < 0 }):
		return nil, refuse(problem.InvalidRequest, "the attach points do not fit the parent's partitions"), nil
	case at.AttachEpoch == 0 || IsEnded(tx, at.AttachEpoch) || tx.Get(BucketAttachments, incarnationKey(at.AttachEpoch)) != nil || IsLive(tx, at.AttachEpoch):
		return nil, refuse(problem.TopicChanged, "this attach epoch was given before"), nil
	}
	if refused := checkDelay(parent.RetentionMS, at.DelayMS); refused.Refusal != nil {
		return nil, refused, nil
	}
	return parent, Result{}, nil
}

// checkDelay refuses a parent that forgets messages before a child is due them.
func checkDelay(retentionMS, delayMS int64) Result {
	least := delayMS + topic.DelayMarginMS
	if delayMS == 0 || retentionMS == 0 || retentionMS >= least {
		return Result{}
	}
	return refuse(problem.RetentionTooShort, "the parent does not keep its messages as long as the child's delay, and an hour").with("minimum_ms", least)
}

// attach links two topics that can be.
func attach(tx Tx, parent, child *topic.Topic, at *topic.Attachment) (Result, error) {
	parent.Children = append(parent.Children, at.Child)
	slices.SortFunc(parent.Children, func(a, b topic.Child) int { return strings.Compare(a.Name, b.Name) })
	parent.Version++
	child.Parent = &topic.Parent{Name: parent.Name, Incarnation: parent.Incarnation, DelayMS: at.DelayMS, AttachEpoch: at.AttachEpoch}
	child.Version++
	for _, t := range []*topic.Topic{parent, child} {
		if err := put(tx, BucketTopics, []byte(t.Name), t); err != nil {
			return Result{}, err
		}
	}
	if err := put(tx, BucketAttachments, incarnationKey(at.AttachEpoch), at); err != nil {
		return Result{}, err
	}
	return Result{Topic: child, Effects: Effects{Topics: []string{parent.Name, child.Name}}}, nil
}

func applyDetach(tx Tx, e *DetachChild) (Result, error) {
	parent, err := TopicByName(tx, e.Parent)
	switch {
	case err != nil:
		return Result{}, err
	case parent == nil:
		return refuse(problem.TopicNotFound, fmt.Sprintf("there is no topic %q", e.Parent)), nil
	case parent.Incarnation != e.ParentIncarnation:
		return refuse(problem.TopicChanged, "the parent's name belongs to another incarnation").with("incarnation", parent.Incarnation), nil
	}
	c, ok := parent.ChildNamed(e.Child)
	if !ok || c.AttachEpoch != e.AttachEpoch {
		return refuse(problem.ChildNotFound, fmt.Sprintf("%q is not a child of %q", e.Child, e.Parent)), nil
	}
	if err := unlinkChild(tx, parent, c, e.NowMS); err != nil {
		return Result{}, err
	}
	if err := unlinkParent(tx, c); err != nil {
		return Result{}, err
	}
	return Result{Topic: parent, Effects: Effects{Topics: []string{parent.Name, c.Name}}}, nil
}

// unlinkChild takes a child from its parent's record, and ends the attachment.
func unlinkChild(tx Tx, parent *topic.Topic, c topic.Child, nowMS int64) error {
	parent.Children = slices.DeleteFunc(parent.Children, func(o topic.Child) bool { return o.AttachEpoch == c.AttachEpoch })
	parent.Version++
	if err := put(tx, BucketTopics, []byte(parent.Name), parent); err != nil {
		return err
	}
	return endAttachment(tx, parent.Name, c, nowMS)
}

func endAttachment(tx Tx, parent string, c topic.Child, nowMS int64) error {
	if err := tx.Delete(BucketAttachments, incarnationKey(c.AttachEpoch)); err != nil {
		return err
	}
	return put(tx, BucketEnded, incarnationKey(c.AttachEpoch), &EndedRecord{Name: parent + "/" + c.Name, EndedMS: nowMS})
}

// unlinkParent makes a child stand alone, if that life is still there.
func unlinkParent(tx Tx, c topic.Child) error {
	child, err := TopicByName(tx, c.Name)
	if err != nil || child == nil || child.Parent == nil || child.Parent.AttachEpoch != c.AttachEpoch {
		return err
	}
	child.Parent = nil
	child.Version++
	return put(tx, BucketTopics, []byte(child.Name), child)
}

// unlinkAll detaches a topic that is being deleted from whatever it is linked to,
// and returns the names that changed besides.
func unlinkAll(tx Tx, t *topic.Topic, nowMS int64) ([]string, error) {
	var changed []string
	for _, c := range t.Children {
		if err := endAttachment(tx, t.Name, c, nowMS); err != nil {
			return nil, err
		}
		if err := unlinkParent(tx, c); err != nil {
			return nil, err
		}
		changed = append(changed, c.Name)
	}
	if t.Parent == nil {
		return changed, nil
	}
	parent, err := TopicByName(tx, t.Parent.Name)
	if err != nil || parent == nil || parent.Incarnation != t.Parent.Incarnation {
		return changed, err
	}
	if c, ok := parent.ChildNamed(t.Name); ok && c.AttachEpoch == t.Parent.AttachEpoch {
		changed = append(changed, parent.Name)
		return changed, unlinkChild(tx, parent, c, nowMS)
	}
	return changed, nil
}
