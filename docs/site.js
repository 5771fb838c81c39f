// An old address whose page was joined with another one arrives with two places: the section, and the old place in it.
const places = location.hash.split("#");
if (places.length > 2) location.replace("#" + places.pop());
