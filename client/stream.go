package client

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"fencepost/httpapi/wire"
)

// maxStreamLine bounds one line of a stream: an event is a name, a holder and
// metadata, so what is longer is not fencepost's.
const maxStreamLine = 1 << 20

// message is what a stream has between two empty lines, as the standard of
// server-sent events reads it.
type message struct {
	event, id string
	data      []byte // valid during the call
}

// readStream gives each message to take, and calls alive at each line, until
// the stream ends or take fails. A message that is cut off is dropped. It never
// returns nil.
func readStream(r io.Reader, alive func(), take func(message) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxStreamLine)
	var m message
	for lines.Scan() {
		alive()
		line := lines.Bytes()
		if len(line) == 0 {
			if m.id != "" || len(m.data) > 0 {
				if err := take(m); err != nil {
					return err
				}
			}
			m = message{data: m.data[:0]}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			m.event = string(value)
		case "id":
			m.id = string(value)
		case "data":
			if len(m.data) > 0 {
				m.data = append(m.data, '\n')
			}
			m.data = append(m.data, value...)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}

// compacted reads the message that ends a watch which was overtaken.
func compacted(data []byte) error {
	var c wire.Compacted
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("read the end of a watch: %w", err)
	}
	return &Error{
		Status: http.StatusGone, Code: wire.CodeCompacted, Oldest: c.Oldest,
		Detail: fmt.Sprintf("the watch was overtaken after index %d; events before index %d are not kept any more", c.Reached, c.Oldest),
	}
}
