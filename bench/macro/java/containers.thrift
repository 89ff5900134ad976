// A call like CICS' distributed program link with a channel: containers go there, and as many come back.

namespace java containers

service Program {
    list<binary> link(1: list<binary> channel)
}
