package boltfile

// ReservePart is the part of a small disk that is reserved, as 1/ReservePart.
const ReservePart = 16
