package wire

// ContentTypeBackup is the media type of a backup.
const ContentTypeBackup = "application/octet-stream"

// Restored is the answer to POST /v1/snapshot/restore.
type Restored struct {
	Restored bool `json:"restored"`
	// Index is the entry's that did it, and the new floor: every token from before is
	// at or below it, every later one above.
	Index       uint64 `json:"index"`
	ClusterID   string `json:"cluster_id"`   // the one that the backup is of
	BackupIndex uint64 `json:"backup_index"` // that it is at
	Taken       string `json:"taken"`        // when, by the clock of the node that wrote it, as in RFC 3339
	Keys        uint64 `json:"keys"`         // also those that are only a watermark
	DataBytes   uint64 `json:"data_bytes"`   // as the data quota counts them
}
