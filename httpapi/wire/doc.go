// Package wire is what fencepost's HTTP API looks like on the wire: the JSON
// documents, the names of headers, and the codes of problems. Server and client
// share it, so it stands on the standard library alone.
//
// Durations are whole milliseconds and end in "_ms". Tokens, versions and
// indexes are below 2^53, so that every JSON reader has them exactly.
//
// In a request a field that is not required may be left out, which means its
// default; it is left out when it has Go's zero value here. In an answer every
// documented field is present, also at zero; only a Problem and an Event leave
// out what their code or kind has no use for.
package wire
