package fsm

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"fencepost/fsm/fsmpb"
)

// Understands is the newest command version that this code can apply. Members
// announce it (fsmpb.Node), so that a leader proposes nothing that one of them
// would have to stop at.
const Understands = 1

// Encode is the form of a command in the log.
func Encode(c *fsmpb.Command) ([]byte, error) {
	b, err := proto.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	return b, nil
}

// Decode reads a command from the log. It refuses what it does not know whole:
// to skip an unknown field would be to diverge from the replicas that know it.
func Decode(b []byte) (*fsmpb.Command, error) {
	c := new(fsmpb.Command)
	if err := proto.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("decode command: %w", err)
	}
	if name, ok := unknownIn(c.ProtoReflect()); ok {
		return nil, fmt.Errorf("decode command: a field or value of %s is unknown to this version of fencepost", name)
	}
	if c.Op == nil {
		return nil, errors.New("decode command: it is empty, or unknown to this version of fencepost")
	}
	return c, nil
}

// unknownIn finds a message, at any depth, with fields or enum values that the
// schema lacks.
func unknownIn(m protoreflect.Message) (name protoreflect.FullName, found bool) {
	if len(m.GetUnknown()) > 0 {
		return m.Descriptor().FullName(), true
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.Kind() == protoreflect.EnumKind && fd.Enum().Values().ByNumber(v.Enum()) == nil {
			name, found = fd.FullName(), true
			return false
		}
		if fd.Kind() != protoreflect.MessageKind {
			return true
		}
		if !fd.IsList() {
			name, found = unknownIn(v.Message())
			return !found
		}
		list := v.List()
		for i := 0; i < list.Len() && !found; i++ {
			name, found = unknownIn(list.Get(i).Message())
		}
		return !found
	})
	return name, found
}
