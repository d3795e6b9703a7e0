"""``toolrelay prices``: the list prices of providers."""
