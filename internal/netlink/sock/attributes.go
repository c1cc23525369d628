package sock

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// NetfilterHeader is the length of struct nfgenmsg, with which nfnetlink messages
// begin.
const NetfilterHeader = 4

// EachAttribute calls each for the attributes in data, with the type without its flags.
// It stops at a malformed attribute. The values are parts of data. It takes a function
// instead of returning an iterator because the compiler turns the function into a loop
// everywhere: an iterator allocates where it is not inlined.
func EachAttribute(data []byte, each func(kind uint16, value []byte)) {
	for len(data) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofNlAttr || length > len(data) {
			return
		}
		kind := binary.NativeEndian.Uint16(data[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		each(kind, data[unix.SizeofNlAttr:length])
		data = data[min(len(data), Align(length)):]
	}
}

// EachNetfilterAttribute is like EachAttribute for the attributes of an nfnetlink
// message.
func EachNetfilterAttribute(message []byte, each func(kind uint16, value []byte)) {
	EachAttribute(After(NetfilterHeader, message), each)
}

// After returns the part of a message that follows its header; nothing if the message
// is too short.
func After(header int, message []byte) []byte { return message[min(len(message), header):] }

// Align returns a length together with the padding that follows it.
func Align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// Uint32 reads a number in the host's byte order; 0 if the value has another length.
func Uint32(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(value)
}

// Uint32BE reads a number in network byte order; 0 if the value has another length.
func Uint32BE(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// Uint64BE reads a number in network byte order; 0 if the value has another length.
func Uint64BE(value []byte) uint64 {
	if len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

// String reads a string, with or without NUL at the end.
func String(value []byte) string { return string(bytes.TrimRight(value, "\x00")) }
