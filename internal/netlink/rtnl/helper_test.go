package rtnl_test

import "time"

const (
	waitTime = 5 * time.Second
	pollTime = 5 * time.Millisecond
)
