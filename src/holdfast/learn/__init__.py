"""A model that learns from use, round by round: collect, judge, train, gate, promote or refuse, acknowledge."""
