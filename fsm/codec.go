package fsm

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"fencepost/fsm/fsmpb"
)

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
		return nil, fmt.Errorf("decode command: a field or value of %s is %w", name, ErrUnknown)
	}
	if c.Op == nil {
		return nil, fmt.Errorf("decode command: it is empty, or %w", ErrUnknown)
	}
	return c, nil
}

// unknownIn finds a message, at any depth, with fields or enum values that the
// schema lacks. It runs for every entry on every node, so it looks only at the
// fields that can hide something.
func unknownIn(m protoreflect.Message) (name protoreflect.FullName, found bool) {
	if len(m.GetUnknown()) > 0 {
		return m.Descriptor().FullName(), true
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		switch kind := fd.Kind(); {
		case kind == protoreflect.EnumKind:
			if fd.Enum().Values().ByNumber(m.Get(fd).Enum()) == nil {
				return fd.FullName(), true
			}
		case kind != protoreflect.MessageKind || !m.Has(fd):
		case fd.IsList():
			list := m.Get(fd).List()
			for i := range list.Len() {
				if name, found = unknownIn(list.Get(i).Message()); found {
					return name, true
				}
			}
		default:
			if name, found = unknownIn(m.Get(fd).Message()); found {
				return name, true
			}
		}
	}
	return "", false
}
