package boltstore

// reservePart is the part of a small disk that is reserved, as 1/reservePart.
const reservePart = 16
