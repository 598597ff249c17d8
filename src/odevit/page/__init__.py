"""title, parts -> a page of HTML that needs nothing beside it: what every report is put together from."""
